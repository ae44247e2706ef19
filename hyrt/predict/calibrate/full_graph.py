"""Measurement of full-graph training steps on the CPU, with and without chunks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from hyrt_perfmodel.calibration_fit import fit_nonnegative
from hyrt_perfmodel.measured_costs import ChunkReadCost, FullGraphRates, GatherCost, HostChunkRates, LoopCost
from hyrt_perfmodel.workload import FullGraphStep

from hyrt.device import DeviceOptions
from hyrt.device.calls import load_replica, opened
from hyrt.device.capabilities import SharesColumns
from hyrt.device.discovery import find_device
from hyrt.fullgraph.chunk_grid import ChunkSizes, EdgeChunk
from hyrt.fullgraph.chunk_kernels import ChunkKernels
from hyrt.fullgraph.loop_gather_ops import GraphEdges
from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.graph.topology import Topology
from hyrt.nn.architecture import Architecture
from hyrt.nn.full_graph.aggregate import max_aggregate_into, spmm_into
from hyrt.nn.full_graph.attention import attend_backward_into, attend_into
from hyrt.nn.fused.fused_gather import SumLoops, masked_attention_gather, max_loops, run_attention_backward
from hyrt.nn.fused.loop_backend import run_loop
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.attention_dropout import AttentionDropout
from hyrt.nn.torch_threads import torch_threads, use_one_torch_thread
from hyrt.objective.classification import Classification
from hyrt.predict.calibrate.host import CacheSweep, thread_counts
from hyrt.predict.dataset_sizes import FullGraphSizes
from hyrt.predict.step_dry_run import full_graph_step, is_predictable
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.full_sampler import FullSampler

# Sizes of the matrices in bytes, of which all, some and almost none of the rows fit in a cache.
_CHUNK_MATRIX_BYTES = (2**20, 2**24, 2**27)
# Number of edges per measurement, by row width.
_EDGES = {16: 400_000, 128: 100_000}
# Edges per destination row in measurements with many edges per row.
_DEGREE = 16
_CLASSES = 32
# Number of rows in measurements of products and losses, by row width.
_ROWS = {16: 1 << 16, 128: 1 << 14}
_FEW_EDGES = 16
_DROPOUT = 0.5
_CHUNK_REPETITIONS = 4


@dataclass(frozen=True, slots=True)
class _MeasuredChunk:
    """Chunk of random edges between two vertex intervals, with the weights of their end points."""

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
        """Return the time in seconds of a gather along the edges in the second layer."""
        factors = self.of_columns if scaled else None

        def gather() -> None:
            kernels.gather(1, self.edges, self.of_rows, factors, self_rows=False, backward=False)
            kernels.wait()

        return _min_chunk_s(gather)


@contextmanager
def _kernels(threads: int, width: int, vertices: int, edges: int) -> Iterator[ChunkKernels]:
    """Yield the CPU's chunk kernels with `threads` threads, for a model whose rows have `width` columns."""
    backend, info = find_device("cpu:0")
    model = GNN(Architecture(kind="gcn", in_features=width, hidden=width, num_classes=_CLASSES, dropout=0.0))
    sizes = ChunkSizes(vertices=vertices, targets=min(vertices, _ROWS[width]), edges=edges, edge_rows=edges)
    with opened(backend, info, DeviceOptions(threads=threads)) as device:
        load_replica(device, model, list(model.parameters()), Classification())
        assert isinstance(device, SharesColumns)
        memory = device.chunk_memory(1)
        with memory.translate_errors():
            kernels = memory.allocate(sizes)
            kernels.begin_step(0, 0)
            kernels.put("read", np.ones((vertices, width), np.float32))
            kernels.clear("accumulated", vertices, width)
            yield kernels
        memory.release()


def measure_chunk_rates(cores: int) -> tuple[HostChunkRates, ...]:
    """Measure chunk rates with one, several and all threads of the CPU; raise HyrtError if a step fails."""
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
            # The number of destination rows of an interval is limited by its vertices.
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
    # The cost per row follows from the difference between rows of one edge and rows of many edges.
    row_s = {w: max(0.0, (single_edge_s[w] - many_edges_s[w, middle]) / (1 - 1 / _DEGREE)) for w in _EDGES}
    width_low, width_high = sorted(_EDGES)
    row_value_s = max(0.0, (row_s[width_high] - row_s[width_low]) / (width_high - width_low))
    factors = {w: max(0.0, scaled[w] - many_edges_s[w, middle]) for w in _EDGES}
    factor_value_s = max(0.0, (factors[width_high] - factors[width_low]) / (width_high - width_low))
    mac_s, value_s = fit_nonnegative(
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
    """Return the costs per edge and per byte from two widths, without the cost per destination row."""
    width_low, width_high = sorted(_EDGES)
    short_s, long_s = (
        max(0.0, many_edges_s[w, matrix_bytes] - row_s[w] / _DEGREE) for w in (width_low, width_high)
    )
    byte_s = max(1e-13, (long_s - short_s) / (4 * (width_high - width_low)))
    return ChunkReadCost(
        matrix_bytes=matrix_bytes, edge_s=max(0.0, short_s - 4 * width_low * byte_s), gb_s=1e-9 / byte_s
    )


def _rows_to_read(kernels: ChunkKernels, width: int) -> np.ndarray:
    """Upload the rows for a measurement and return their indices."""
    kernels.put("read", np.ones((_ROWS[width], width), np.float32))
    return np.arange(_ROWS[width])


def _products_s(kernels: ChunkKernels, width: int) -> float:
    """Return the forward and backward time in seconds of a layer's product and activation."""
    vertices = _rows_to_read(kernels, width)

    def compute() -> None:
        kernels.compute(0, "read", vertices)
        kernels.backward_linear(0, "read", "accumulated", vertices, needs_input_gradient=True)
        kernels.wait()

    return _min_chunk_s(compute)


def _copy_s(kernels: ChunkKernels, vertices: int, width: int) -> float:
    """Return the time in seconds per byte to upload or download rows."""
    rows = np.ones((vertices, width), np.float32)

    def copy() -> None:
        kernels.put("accumulated", rows)
        kernels.get("accumulated", rows)
        kernels.wait()

    return _min_chunk_s(copy) / (2 * rows.nbytes)


def _dropout_s(kernels: ChunkKernels, width: int) -> float:
    """Return the time of dropout in seconds per value."""
    vertices = _rows_to_read(kernels, width)

    def drop() -> None:
        kernels.apply_dropout("read", vertices, width, 0, _DROPOUT)
        kernels.wait()

    return _min_chunk_s(drop) / (width * len(vertices))


def _loss_s(kernels: ChunkKernels, width: int) -> float:
    """Return the time of the loss and its gradient in seconds per score."""
    vertices = _rows_to_read(kernels, width)
    labels = vertices % _CLASSES
    kernels.compute(1, "read", vertices)

    def compute_loss() -> None:
        kernels.compute_loss(labels, None, None)
        kernels.wait()

    return _min_chunk_s(compute_loss) / (_CLASSES * len(vertices))


def _min_chunk_s(work: Callable[[], object]) -> float:
    """Return the minimum time in seconds of several calls, after one call for warm-up."""
    spent = []
    for _ in range(1 + _CHUNK_REPETITIONS):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return max(min(spent[1:]), 1e-9)


# Sizes of the matrices in bytes: all, some and almost none of the rows fit in the CPU's caches.
_MATRIX_BYTES = (2**20, 2**24, 2**27)
# (heads, columns per head): a row takes one cache line, or several.
_HEADS = ((1, 16), (4, 32))
# Edges per measurement, by row width: about a tenth of a second, and more rows than a cache holds.
_READS = {16: 2_000_000, 128: 750_000}
_REPETITIONS, _MAX_SPREAD = 3, 0.03


@dataclass(frozen=True, slots=True)
class _Probe:
    """Model and random graph to measure; probes differ in the cost terms that dominate."""

    kind: str
    vertices: int
    degree: int
    features: int
    hidden: int
    classes: int


# Use few distinct widths, because a loop is compiled for each width.
_PROBES = (
    _Probe("gcn", 1 << 9, 4, 16, 16, 16),
    _Probe("gcn", 1 << 17, 2, 16, 16, 16),
    _Probe("gcn", 1 << 16, 2, 128, 256, 64),
    _Probe("graphsage", 1 << 16, 2, 128, 64, 64),
    _Probe("gin", 1 << 16, 2, 64, 64, 16),
    _Probe("gat", 1 << 15, 2, 64, 128, 32),
)


# (vertices, degree, width) of probes of loops: narrow or wide messages, few or many edges per vertex.
_LOOP_PROBES = ((1 << 15, 32, 16), (1 << 16, 8, 64), (1 << 15, 8, 16))


@contextmanager
def _team(cores: int) -> Iterator[Workers]:
    """Yield the worker threads for measurements."""
    with (
        Workers(cores, "hyrt.calibrate.train", on_start=use_one_torch_thread, pool=BufferPool()) as workers,
        torch_threads(1),
    ):
        yield workers


def measure_loop_cost(kind: str, rates: FullGraphRates) -> LoopCost | None:
    """Measure the edge loops of a model kind, given the `rates` of the other parts of a step.

    Returns None if the kind has no loops, or if torch computes them.
    """
    terms, seconds = [], []
    with _team(rates.threads) as workers:
        for vertices, degree, width in _LOOP_PROBES:
            probe = _Probe(kind, vertices, degree, width, width, width)
            if not is_predictable(_model(probe)):
                return None
            step, measured_s = _measured_step(probe, workers)
            loops = [reads for reads in step.reads if reads.kind == "loops"]
            if not loops:
                return None
            rest_s = measured_s - rates.rows_s(step, rates.threads)
            terms.append(
                [sum(reads.rows for reads in loops), sum(reads.rows * reads.width for reads in loops)]
            )
            seconds.append(max(rest_s, 0.1 * measured_s))
    edge_s, value_s = fit_nonnegative(np.array(terms) / np.array(seconds)[:, None])
    return LoopCost(edge_s=float(edge_s), value_s=float(value_s))


def measure_full_graph_rates(cores: int) -> FullGraphRates:
    """Measure full-graph steps on all cores; raise HyrtError if a step fails."""
    with _team(cores) as workers:
        reads = tuple(_reads(workers))
        mask_s = _mask_s(workers)
        loop_ratios = _loop_ratios(workers)
        gather_rates = FullGraphRates(
            threads=cores, reads=reads, mask_s=mask_s, call_s=0.0, macs_per_s=math.inf, values_per_s=math.inf
        )
        terms, seconds = [], []
        for probe in _PROBES:
            step, measured_s = _measured_step(probe, workers)
            rest_s = measured_s - gather_rates.reads_s(step.reads, cores)
            # The remainder of a step is at least 10 % of it: a smaller or negative remainder is noise.
            terms.append([step.calls, step.macs, step.values])
            seconds.append(max(rest_s, 0.1 * measured_s))
    call_s, mac_s, value_s = fit_nonnegative(np.array(terms) / np.array(seconds)[:, None])
    return FullGraphRates(
        threads=cores,
        reads=reads,
        mask_s=mask_s,
        call_s=float(call_s),
        macs_per_s=1 / mac_s if mac_s else math.inf,
        values_per_s=1 / value_s if value_s else math.inf,
        looped=loop_ratios,
    )


def _reads(workers: Workers) -> Iterator[GatherCost]:
    """Yield the costs of reading rows, each of which follows from measurements of two widths."""
    for matrix_bytes in _MATRIX_BYTES:
        by_width: dict[int, tuple[float, float, float]] = {}
        for heads, columns in _HEADS:
            width = heads * columns
            rows = matrix_bytes // (4 * width)
            topology = _random_topology(rows, _READS[width])
            by_width[width] = _read_s(topology, heads, columns, workers)
        (width_low, low_s), (width_high, high_s) = sorted(by_width.items())
        operations = (("sum", False), ("attention", False), ("attention", True))
        for (kind, is_backward), short_s, long_s in zip(operations, low_s, high_s, strict=True):
            byte_s = max(1e-13, (long_s - short_s) / (4 * (width_high - width_low)))
            yield GatherCost(
                kind=kind,  # type: ignore[arg-type]
                back=is_backward,
                matrix_bytes=matrix_bytes,
                row_s=max(0.0, short_s - 4 * width_low * byte_s),
                gb_s=1e-9 / byte_s,
            )


def _random_topology(vertices: int, edges: int) -> Topology:
    """Return a topology of about `edges` random edges, with representative times for reading rows."""
    random, degree = np.random.default_rng(0), max(1, edges // vertices)
    indices = random.integers(0, vertices, (vertices, degree), dtype=np.int32)
    indices.sort(axis=1)
    return Topology(np.arange(0, vertices * degree + 1, degree, dtype=np.int64), indices.reshape(-1))


def _read_s(topology: Topology, heads: int, columns: int, workers: Workers) -> tuple[float, float, float]:
    """Return the seconds per row of a sum, of attention, and of the gradient of attention."""
    rows, shape = topology.num_vertices, (topology.num_vertices, heads, columns)
    x, out, positive, grad, x_grad = (torch.ones(shape).numpy() for _ in range(5))
    vertex_arrays = [torch.ones(shape[:2]).numpy() for _ in range(6)]
    at_source, at_destination, lse, weight, source_grad, destination_grad = vertex_arrays
    scale = np.ones(rows, np.float32)
    edges = (topology.indptr, topology.indices)

    def add() -> None:
        spmm_into(
            *edges, x.reshape(rows, -1), out.reshape(rows, -1),
            row_scale=scale, self_scale=scale, workers=workers,
        )  # fmt: skip

    def attend() -> None:
        attend_into(*edges, x, at_source, at_destination, out, lse, positive, weight, workers=workers)

    def attend_backward() -> None:
        attend_backward_into(
            *edges, x, at_source, at_destination, out, lse, positive, weight, grad, x_grad, source_grad,
            destination_grad, workers=workers,
        )  # fmt: skip

    add_s, attend_s, backward_s = (_min_s(work) for work in (add, attend, attend_backward))
    # Each vertex also reads its row through a self-loop.
    num_rows = topology.num_edges + rows
    return add_s / num_rows, attend_s / num_rows, backward_s / num_rows


def _loop_ratios(workers: Workers) -> dict[str, float]:
    """Return the times of the loops over edges relative to the compiled operators, by loop."""
    heads, columns = _HEADS[-1]
    width = heads * columns
    rows = _MATRIX_BYTES[1] // (4 * width)
    topology = _random_topology(rows, _READS[width])
    x, out, positive, grad, x_grad = (torch.ones(rows, width).numpy() for _ in range(5))
    vertex_arrays = [torch.ones(rows, heads).numpy() for _ in range(6)]
    at_source, at_destination, lse, _, source_grad, destination_grad = vertex_arrays
    winners, scale = np.zeros((rows, width), np.int32), np.ones(rows, np.float32)
    weighted = GraphEdges(topology, has_loops=True, row_scale=scale, loop_scale=scale)
    plain = GraphEdges(topology).by_destination(None)
    by_destination, by_source = (
        weighted.by_destination(None),
        GraphEdges(topology, has_loops=True).by_source(None),
    )
    sums, largest = SumLoops(None, has_loops=True), max_loops(width)[0]
    attention = masked_attention_gather(heads, columns, 0.2, None)
    add_s, attend_s, backward_s = (
        row_s * (topology.num_edges + rows) for row_s in _read_s(topology, heads, columns, workers)
    )

    def largest_by_operator() -> None:
        max_aggregate_into(topology.indptr, topology.indices, x, out, winners, workers=workers)

    operator_s = {
        "sum": add_s,
        "max": _min_s(largest_by_operator),
        "attention": attend_s,
        "attention back": backward_s,
    }
    operands = [x, at_source, at_destination]
    edges = GraphEdges(topology, has_loops=True).by_destination(None)
    looped: dict[str, Callable[[], object]] = {
        "sum": lambda: sums.forward(by_destination, x, out, workers),
        "max": lambda: run_loop(largest, plain, [x], (out, winners), None, workers),
        "attention": lambda: attention.forward(edges, operands, out, lse, workers),
        "attention back": lambda: run_attention_backward(
            *(attention, edges, by_source, operands, (lse, positive), grad),
            *((x_grad, source_grad, destination_grad), workers),
        ),
    }
    return {name: _min_s(work) / operator_s[name] for name, work in looped.items()}


def _mask_s(workers: Workers) -> float:
    """Return the additional time of masked attention in seconds per edge and head."""
    heads, columns = _HEADS[-1]
    rows = _MATRIX_BYTES[1] // (4 * heads * columns)
    topology = _random_topology(rows, _READS[heads * columns])
    p, out, positive = (torch.ones(rows, heads, columns).numpy() for _ in range(3))
    at_source, at_destination, lse, weight = (torch.ones(rows, heads).numpy() for _ in range(4))

    def attend(mask: AttentionDropout | None) -> None:
        attend_into(
            topology.indptr, topology.indices, p, at_source, at_destination, out, lse, positive, weight,
            mask=mask, workers=workers,
        )  # fmt: skip

    masked_s = _min_s(lambda: attend(AttentionDropout.from_rate(0.5, 0, 0, 1)))
    return max(0.0, masked_s - _min_s(lambda: attend(None))) / (heads * (topology.num_edges + rows))


def _model(probe: _Probe) -> GNN:
    widths = {"in_features": probe.features, "hidden": probe.hidden, "num_classes": probe.classes}
    return GNN(Architecture(kind=probe.kind, **widths))  # type: ignore[arg-type]


def _measured_step(probe: _Probe, workers: Workers) -> tuple[FullGraphStep, float]:
    """Return the work of a training step and its measured time in seconds."""
    topology = _random_topology(probe.vertices, probe.vertices * probe.degree)
    # Skip the transposition: the transpose of a random graph is a random graph with equal reading times.
    topology.__dict__["is_symmetric"] = True
    all_vertices = np.ones(probe.vertices, np.bool_)
    graph = Graph.from_arrays(
        "random",
        topology.indptr,
        topology.indices,
        DenseFeatures(np.ones((probe.vertices, probe.features), np.float32)),
        np.arange(probe.vertices, dtype=np.int64) % probe.classes,
        {"train": all_vertices},
    )
    model = _model(probe)
    sampler = FullSampler(graph, graph.split("train"), len(model.layers), seed=0)
    batch = sampler.sample(0, sampler.units(0), workers)
    assert batch.full_graph is not None
    batch.full_graph.topology.__dict__["is_symmetric"] = True
    matrix = graph.features.matrix
    assert matrix is not None
    replica = FullGraphReplica.build(model, batch.full_graph, InPlaceFeatures(matrix), memory_bytes=0)
    with use_workers(workers):
        seconds = _min_s(lambda: replica.step(batch, Classification(), workers))
    sizes = FullGraphSizes(
        vertices=probe.vertices,
        edges=topology.num_edges,
        targets=probe.vertices,
        target_edges=float(topology.num_edges),
        scored=0,
        data_bytes={},
    )
    return full_graph_step(model, sizes, memory_bytes=0.0, threads=workers.count), seconds


def _min_s(work: Callable[[], object]) -> float:
    """Return the minimum time of a few calls with cold caches, because disturbances only add time.

    Two calls suffice if their times agree.
    """
    sweep = CacheSweep()
    work()  # Warm up: the first call may compile.
    spent: list[float] = []
    while len(spent) < _REPETITIONS and not (len(spent) > 1 and max(spent) <= (1 + _MAX_SPREAD) * min(spent)):
        sweep()
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return min(spent)
