"""Measurement of full-graph chunks on the CPU: gathering, copying, products, dropout and the loss
separately.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from hyrt_perfmodel.calibration.fit_rates import non_negative
from hyrt_perfmodel.platforms.host_chunk_rates import ChunkReadCost, HostChunkRates

from hyrt.device import DeviceOptions
from hyrt.device.calls import load_replica, opened
from hyrt.device.capabilities import SharesColumns
from hyrt.device.discovery import find_device
from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels
from hyrt.fullgraph.grid.edge_chunks import EdgeChunk
from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.objective.classification import Classification
from hyrt.predict.calibrate.host import thread_counts

# Matrix sizes of which all, some and almost no rows fit in a cache.
_CHUNK_MATRIX_BYTES = (2**20, 2**24, 2**27)
# Row widths, and edges that are read at a time for each.
_EDGES = {16: 400_000, 128: 100_000}
# Edges per destination row, if rows have many.
_DEGREE = 16
_CLASSES = 32
# Rows of products and losses, per width.
_ROWS = {16: 1 << 16, 128: 1 << 14}
_FEW_EDGES = 16
_DROPOUT = 0.5
_CHUNK_REPETITIONS = 4


@dataclass(frozen=True, slots=True)
class _MeasuredChunk:
    """Random edges between two intervals, with weights of their ends."""

    edges: EdgeChunk
    of_rows: np.ndarray
    of_columns: np.ndarray

    @classmethod
    def drawn(cls, vertices: int, rows: int, degree: int) -> _MeasuredChunk:
        columns = np.random.default_rng(0).integers(0, vertices, (rows, degree), dtype=np.int32)
        columns.sort(axis=1)
        starts = np.arange(0, rows * degree + 1, degree, dtype=np.int32)
        edges = EdgeChunk(np.arange(rows, dtype=np.int32), starts, columns.reshape(-1))
        return cls(edges, np.ones(rows, np.float32), np.ones(vertices, np.float32))

    def seconds(self, kernels: ChunkKernels, *, scaled: bool = False) -> float:
        """Return the seconds to gather along the edges in the second layer."""
        factors = self.of_columns if scaled else None

        def gather() -> None:
            kernels.gather(1, self.edges, self.of_rows, factors, own=False, back=False)
            kernels.wait()

        return _min_chunk_s(gather)


@contextmanager
def _kernels(threads: int, width: int, vertices: int, edges: int) -> Iterator[ChunkKernels]:
    """Yield chunk kernels on the CPU with `threads` threads, for a model with rows of `width` columns."""
    backend, info = find_device("cpu:0")
    model = GNN(Architecture(kind="gcn", in_features=width, hidden=width, num_classes=_CLASSES, dropout=0.0))
    sizes = ChunkSizes(vertices=vertices, targets=min(vertices, _ROWS[width]), edges=edges, edge_rows=edges)
    with opened(backend, info, DeviceOptions(threads=threads)) as device:
        load_replica(device, model, list(model.parameters()), Classification())
        assert isinstance(device, SharesColumns)
        memory = device.chunk_room(1)
        with memory.errors():
            kernels = memory.take(sizes)
            kernels.begin(0, 0)
            kernels.put("read", np.ones((vertices, width), np.float32))
            kernels.clear("accumulated", vertices, width)
            yield kernels
        memory.release()


def chunk_rates(cores: int) -> tuple[HostChunkRates, ...]:
    """Measure the CPU with one thread, with more, and with all cores.

    Raises
    ------
    HyrtError
        If a chunked training step fails.
    """
    return tuple(_rates(threads) for threads in thread_counts(cores))


def _rates(threads: int) -> HostChunkRates:
    many_edges_s: dict[tuple[int, int], float] = {}
    single_edge_s: dict[int, float] = {}
    scaled: dict[int, float] = {}
    products: dict[int, float] = {}
    middle = _CHUNK_MATRIX_BYTES[1]
    copy_s = call_s = dropout_s = loss_s = 0.0
    for width, count in _EDGES.items():
        for matrix_bytes in _CHUNK_MATRIX_BYTES:
            vertices = matrix_bytes // (4 * width)
            # There are no more destination rows than an interval has.
            rows = min(vertices, count // _DEGREE)
            chunk = _MeasuredChunk.drawn(vertices, rows, _DEGREE)
            with _kernels(threads, width, max(vertices, _ROWS[width]), count) as kernels:
                many_edges_s[width, matrix_bytes] = chunk.seconds(kernels) / (rows * _DEGREE)
                if matrix_bytes != middle:
                    continue
                scaled[width] = chunk.seconds(kernels, scaled=True) / (rows * _DEGREE)
                num_rows = min(vertices, count)
                single_edge_s[width] = _MeasuredChunk.drawn(vertices, num_rows, 1).seconds(kernels) / num_rows
                call_s = _MeasuredChunk.drawn(vertices, 1, _FEW_EDGES).seconds(kernels)
                products[width] = _products_s(kernels, width)
                copy_s = _copy_s(kernels, vertices, width)
                dropout_s = _dropout_s(kernels, width)
                loss_s = _loss_s(kernels, width)
    # Compare rows with one edge and rows with many.
    row_s = {w: max(0.0, (single_edge_s[w] - many_edges_s[w, middle]) / (1 - 1 / _DEGREE)) for w in _EDGES}
    width_low, width_high = sorted(_EDGES)
    row_value_s = max(0.0, (row_s[width_high] - row_s[width_low]) / (width_high - width_low))
    factors = {w: max(0.0, scaled[w] - many_edges_s[w, middle]) for w in _EDGES}
    factor_value_s = max(0.0, (factors[width_high] - factors[width_low]) / (width_high - width_low))
    mac_s, value_s = non_negative(
        np.array([[3 * w * w * _ROWS[w], 2 * w * _ROWS[w]] for w in _EDGES])
        / np.array([products[w] for w in _EDGES])[:, None]
    )
    return HostChunkRates(
        threads=threads,
        copy_gb_s=1e-9 / copy_s,
        reads=tuple(_read(many_edges_s, row_s, matrix_bytes) for matrix_bytes in _CHUNK_MATRIX_BYTES),
        factor_s=max(0.0, factors[width_low] - width_low * factor_value_s),
        factor_value_s=factor_value_s,
        row_s=max(0.0, row_s[width_low] - width_low * row_value_s),
        row_value_s=row_value_s,
        call_s=call_s,
        macs_per_s=float(1 / mac_s) if mac_s else math.inf,
        values_per_s=float(1 / value_s) if value_s else math.inf,
        drawn_per_s=1 / dropout_s,
        scores_per_s=1 / loss_s,
    )


def _read(
    many_edges_s: dict[tuple[int, int], float], row_s: dict[int, float], matrix_bytes: int
) -> ChunkReadCost:
    """Return the costs per edge and per row byte, from two widths, excluding the costs of destination
    rows.
    """
    width_low, width_high = sorted(_EDGES)
    short_s, long_s = (
        max(0.0, many_edges_s[w, matrix_bytes] - row_s[w] / _DEGREE) for w in (width_low, width_high)
    )
    byte_s = max(1e-13, (long_s - short_s) / (4 * (width_high - width_low)))
    return ChunkReadCost(
        matrix_bytes=matrix_bytes, edge_s=max(0.0, short_s - 4 * width_low * byte_s), gb_s=1e-9 / byte_s
    )


def _rows_to_read(kernels: ChunkKernels, width: int) -> np.ndarray:
    """Upload as many rows as are computed at a time; return their indices."""
    kernels.put("read", np.ones((_ROWS[width], width), np.float32))
    return np.arange(_ROWS[width])


def _products_s(kernels: ChunkKernels, width: int) -> float:
    """Return the seconds of a layer's product and activation, forward and backward."""
    vertices = _rows_to_read(kernels, width)

    def compute() -> None:
        kernels.compute(0, "read", vertices)
        kernels.turn_back(0, "read", "accumulated", vertices, wanted=True)
        kernels.wait()

    return _min_chunk_s(compute)


def _copy_s(kernels: ChunkKernels, vertices: int, width: int) -> float:
    """Return the seconds per byte to upload or download rows."""
    rows = np.ones((vertices, width), np.float32)

    def copy() -> None:
        kernels.put("accumulated", rows)
        kernels.get("accumulated", rows)
        kernels.wait()

    return _min_chunk_s(copy) / (2 * rows.nbytes)


def _dropout_s(kernels: ChunkKernels, width: int) -> float:
    """Return the seconds of dropout per value."""
    vertices = _rows_to_read(kernels, width)

    def drop() -> None:
        kernels.drop("read", vertices, width, 0, _DROPOUT)
        kernels.wait()

    return _min_chunk_s(drop) / (width * len(vertices))


def _loss_s(kernels: ChunkKernels, width: int) -> float:
    """Return the seconds of the loss and its gradient per score."""
    vertices = _rows_to_read(kernels, width)
    labels = vertices % _CLASSES
    kernels.compute(1, "read", vertices)

    def compute_loss() -> None:
        kernels.lose(labels, None, None)
        kernels.wait()

    return _min_chunk_s(compute_loss) / (_CLASSES * len(vertices))


def _min_chunk_s(work: Callable[[], object]) -> float:
    """Return the minimum of some repetitions, after one warm-up."""
    spent = []
    for _ in range(1 + _CHUNK_REPETITIONS):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return max(min(spent[1:]), 1e-9)
