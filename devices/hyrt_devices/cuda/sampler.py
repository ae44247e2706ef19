"""Neighbour sampling on the device, with the same bits as on the host."""

from __future__ import annotations

import threading
import traceback
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import QueueListener
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.sampling.block import Ids
from hyrt.sampling.sampler import Hop
from hyrt_devices.cuda.blocks import ResidentHop
from hyrt_devices.cuda.driver import Driver, Timeline, fetch
from hyrt_devices.cuda.feature_rows import upload
from hyrt_devices.cuda.launch import THREADS, Argument, KernelLauncher, KernelProgram

_UNMET = 2**31 - 1


def c_type(dtype: np.dtype[Any]) -> str:
    """Return the name of an integer type in the kernels' C code."""
    return {"int32": "int", "int64": "long long"}[dtype.name]


def id_type(graph: Graph) -> np.dtype[Any]:
    """Return the dtype of vertex ids in the graph's mini-batches."""
    return np.dtype(np.int32 if graph.num_vertices < 2**31 else np.int64)


class ReadableTopology:
    """Graph topology that kernels can read, in device memory if `resident`, otherwise in mapped host memory.

    Raises MemoryError if host memory cannot be mapped.
    """

    def __init__(
        self,
        driver: Driver,
        launcher: KernelLauncher,
        pool: BufferPool,
        stream: Any,
        graph: Graph,
        *,
        resident: bool,
    ) -> None:
        self._launcher = launcher
        self._mapped: list[NDArray[Any]] = []
        self._resident: list[torch.Tensor] = []
        self.nbytes = 0
        self.index_type = c_type(graph.topology.indices.dtype)
        arrays = (graph.topology.indptr, graph.topology.indices)
        if resident:
            self._resident = [upload(driver, pool, stream, array) for array in arrays]
            self.nbytes = sum(array.nbytes for array in arrays)
            self.arguments: list[Argument] = list(self._resident)
            return
        self.arguments = []
        for array in arrays:
            address = launcher.map_host(array)
            if address is None:
                self.close()
                raise MemoryError(f"the graph's edges cannot be mapped from host memory to {driver.device}")
            self._mapped.append(array)
            self.arguments.append(address)

    def close(self) -> None:
        self._resident, self.arguments, self.nbytes = [], [], 0
        while self._mapped:
            self._launcher.unmap_host(self._mapped.pop())


class CudaSampler:
    """Sampler that samples and relabels one hop at a time on a separate stream.

    Unless the topology is `resident` on the device, kernels read host memory over the link.
    """

    def __init__(
        self, driver: Driver, launcher: KernelLauncher, pool: BufferPool, graph: Graph, *, resident: bool
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._num_vertices = graph.num_vertices
        self._ids = id_type(graph)
        self._stream = launcher.stream()
        self._topology: ReadableTopology | None = ReadableTopology(
            driver, launcher, pool, self._stream, graph, resident=resident
        )
        self._program = KernelProgram(
            launcher, "sample", {"HYRT_ID": c_type(self._ids), "HYRT_INDEX": self._topology.index_type}
        )
        # Sample one hop at a time, because the table of first occurrences is shared.
        self._lock = threading.Lock()
        self._first: torch.Tensor | None = None
        self._listener: QueueListener | None = None
        self._timeline: Timeline | None = None

    def trace(self, listener: QueueListener, timeline: Timeline) -> None:
        """Report the sampling time of each hop from now on, with the name `sample`."""
        self._listener, self._timeline = listener, timeline

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the topology and the table of first occurrences use."""
        table = 0 if self._first is None else self._first.nbytes
        return table + (0 if self._topology is None else self._topology.nbytes)

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Sample neighbours as described at `HopSampler.draw`."""
        with self._lock, self._driver.running(self._stream):
            if self._topology is None:
                raise RuntimeError(f"the sampler of {self._driver.device} was used after it was closed")
            try:
                if self._timeline is None:
                    return self._draw(vertices, fanout, key, relabel)
                return self._draw_traced(self._timeline, vertices, fanout, key, relabel)
            except Exception as error:
                # Discard the table, which may contain partial results of the failed hop.
                self._first = None
                if not self._driver.out_of_memory(error):
                    raise
                traceback.clear_frames(error.__traceback__)
                raise DeviceOutOfMemoryError(
                    f"{self._driver.device}: out of memory while sampling {fanout} neighbours of "
                    f"{len(vertices):,} vertices: lower data.batch_size, or set "
                    "sampler.on_device=false to sample on the host"
                ) from error

    def _draw_traced(
        self, timeline: Timeline, vertices: Ids, fanout: int, key: np.uint64, relabel: bool
    ) -> Hop:
        start = self._driver.mark(self._stream)
        hop = self._draw(vertices, fanout, key, relabel)
        end = self._driver.mark(self._stream)
        # This wait is short, because the samples are already on the host.
        self._driver.wait(end)
        assert self._listener is not None
        self._listener("sample", timeline.spans([(f"draw {fanout} each", start, end)]))
        return hop

    def _draw(self, vertices: Ids, fanout: int, key: np.uint64, relabel: bool) -> Hop:
        num = len(vertices)
        mine = self._to_device(np.ascontiguousarray(vertices, self._ids))
        degrees, counts = self._count(mine, fanout)
        offsets = torch.zeros(num + 1, dtype=torch.int32, device=mine.device)
        totals = counts.cumsum(0)
        offsets[1:] = totals
        edges = int(totals[-1]) if num else 0
        if edges >= 2**31:
            raise OverflowError(
                f"one hop has {edges:,} sampled edges, which is too many: lower sampler.fanout"
            )
        neighbors = self._pick(mine, offsets, edges, key)
        if not relabel or num + edges >= _UNMET:
            return Hop(*self._fetch(degrees, offsets, neighbors))
        sources, columns = self._relabel(mine, neighbors)
        resident = ResidentHop(
            self._driver.device, offsets, columns, sources, degrees, self._count(sources, -1)[0]
        )
        hop = Hop(*self._fetch(degrees, offsets, neighbors, sources, columns))
        return replace(hop, resident=resident)

    def _count(self, vertices: torch.Tensor, fanout: int) -> tuple[torch.Tensor, torch.Tensor]:
        num = len(vertices)
        degrees = torch.empty(num, dtype=torch.int32, device=vertices.device)
        counts = torch.empty_like(degrees)
        assert self._topology is not None
        arguments = [self._topology.arguments[0], vertices, np.int64(num), np.int32(fanout), degrees, counts]
        self._program.launch("count_neighbors", num, THREADS, arguments)
        return degrees, counts

    def _pick(
        self, vertices: torch.Tensor, offsets: torch.Tensor, edges: int, key: np.uint64
    ) -> torch.Tensor:
        num = len(vertices)
        positions = torch.empty(edges, dtype=torch.int64, device=vertices.device)
        neighbors = torch.empty(edges, dtype=vertices.dtype, device=vertices.device)
        assert self._topology is not None
        indptr, indices = self._topology.arguments
        arguments = [indptr, vertices, offsets, np.int64(num), np.uint64(key), positions]
        self._program.launch("pick_positions", num, THREADS, arguments)
        arguments = [indptr, indices, vertices, offsets, np.int64(num), positions, np.int64(edges), neighbors]
        self._program.launch("read_neighbors", edges, THREADS, arguments)
        return neighbors

    def _relabel(self, vertices: torch.Tensor, neighbors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num, edges = len(vertices), len(neighbors)
        if self._first is None:
            self._first = torch.full((self._num_vertices,), _UNMET, dtype=torch.int32, device=vertices.device)
        first = self._first
        sizes = [np.int64(num), np.int64(edges)]
        arguments: list[Argument] = [vertices, sizes[0], neighbors, sizes[1], first]
        self._program.launch("find_first", num + edges, THREADS, arguments)
        is_new = torch.empty(edges, dtype=torch.int32, device=vertices.device)
        self._program.launch("mark_new", edges, THREADS, [neighbors, *sizes, first, is_new])
        rank = is_new.cumsum(0, dtype=torch.int32)
        sources = torch.empty(num + edges, dtype=vertices.dtype, device=vertices.device)
        sources[:num] = vertices
        columns = torch.empty(edges, dtype=torch.int32, device=vertices.device)
        self._program.launch(
            "number_sources", edges, THREADS, [neighbors, *sizes, first, rank, sources, columns]
        )
        # Clone the sources: a view would hold the much larger buffer for all neighbours.
        sources = sources[: num + (int(rank[-1]) if edges else 0)].clone()
        first.index_fill_(0, sources.long(), _UNMET)
        return sources, columns

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        return upload(self._driver, self._pool, self._stream, array)

    def _fetch(self, *tensors: torch.Tensor) -> list[Any]:
        return fetch(self._driver, self._pool, self._stream, tensors)

    def close(self) -> None:
        """Release the topology. Idempotent."""
        with self._lock:
            if self._topology is not None:
                self._driver.wait(self._driver.mark(self._stream))
                self._topology.close()
            self._topology, self._first = None, None
