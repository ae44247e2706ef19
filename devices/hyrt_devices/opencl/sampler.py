"""Neighbour sampling on the device, with the same bits as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyrt.device import QueueListener
from hyrt.graph.graph import Graph
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import FLOYD_LIMIT, count_neighbors, prefix_sum
from hyrt.sampling.sampler import Hop
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl.programs import Programs, Tuning
from hyrt_devices.opencl_host.profiling import spans

_TYPES = {np.dtype(np.int32): "int", np.dtype(np.int64): "long"}


class OpenclSampler:
    """Neighbour sampler over a topology in device memory, or in host memory if the device shares it.

    The host computes the prefix sums of the offsets and relabels the sources. Only this sampler may use
    `launcher`. Raises DeviceOutOfMemoryError if the topology does not fit.
    """

    def __init__(
        self,
        programs: Programs,
        tuning: Tuning,
        memory: DeviceMemory,
        launcher: Launcher,
        graph: Graph,
    ) -> None:
        self._programs = programs
        self._tuning = tuning
        self._memory = memory
        self._queue = launcher
        self.listener: QueueListener | None = None
        """Function that is called with the spans of completed commands if the run is traced."""
        self._graph = graph
        self._lease = Lease(memory)
        self._kernels: dict[np.dtype[Any], Any] = {}
        indices = np.ascontiguousarray(graph.topology.indices)
        self._host_arrays = [graph.topology.indptr, indices]
        self._indptr = self._indices = None
        try:
            self._indptr = self._lease.place(self._queue, graph.topology.indptr)
            self._indices = self._lease.place(self._queue, indices)
            self._queue.finish()
        except BaseException:
            self.close()
            raise

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Sample neighbours as described at `HopSampler.draw`.

        Raises DeviceOutOfMemoryError if the hop does not fit, after releasing all of its buffers.
        """
        graph, num = self._graph, len(vertices)
        degrees = np.empty(num, np.int32)
        counts = np.empty(num, np.int32)
        count_neighbors(graph.topology.indptr, vertices, fanout, 0, num, degrees, counts)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"one layer has {edges:,} sampled edges, which is too many: lower sampler.fanout"
            )
        offsets = np.empty(num + 1, np.int32)
        prefix_sum(counts, offsets)
        neighbors = np.empty(edges, vertices.dtype)
        if edges:
            kernel = self._kernels.get(vertices.dtype)
            if kernel is None:
                words: dict[str, int | str] = {
                    "ID": _TYPES[vertices.dtype],
                    "EDGE_ID": _TYPES[self._host_arrays[1].dtype],
                    "FLOYD_LIMIT": FLOYD_LIMIT,
                    "GRAIN": self._tuning.grain,
                    "ITEMS": self._tuning.items,
                }
                kernel = self._kernels[vertices.dtype] = self._programs.kernel("sample", "pick", words)
            vertices = np.ascontiguousarray(vertices)
            with Lease(self._memory) as lease:
                try:
                    out = lease.take(neighbors.nbytes)
                    self._queue.launch(
                        kernel,
                        (ceil_div(ceil_div(num, self._tuning.grain), self._tuning.items),),
                        (self._tuning.items,),
                        *(self._indptr, self._indices, lease.place(self._queue, vertices)),
                        *(lease.place(self._queue, offsets), key, out, num),
                    )
                    self._queue.read(neighbors, out)
                finally:
                    self._queue.finish()
                    ran = self._queue.taken()
                if self.listener is not None:
                    self.listener("sample", spans(ran))
        return Hop(degrees, offsets, neighbors)

    def close(self) -> None:
        """Release the topology's buffers. Idempotent."""
        self._queue.close()
        self._lease.release()
        self._kernels = {}
        self._indptr = self._indices = None
