"""Measurement of full-graph steps on the CPU: the compiled gathers alone, and whole steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from hyrt_perfmodel.calibration.fit_rates import non_negative
from hyrt_perfmodel.platforms.whole_graph_rates import LoopCost, ReadCost, WholeGraphRates
from hyrt_perfmodel.workloads.whole_graph import WholeGraphStep

from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.fullgraph.saga.looped_gathering import WholeEdges
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers, working
from hyrt.nn.architecture import Architecture
from hyrt.nn.fused.layer_loops import LoopedSum, largest_loops, looped_attention, run_attention_back
from hyrt.nn.fused.loop_runner import run_loop
from hyrt.nn.inputs import InPlace
from hyrt.nn.model import GNN
from hyrt.nn.operators.attention_mask import AttentionMask
from hyrt.nn.torch_threads import torch_threads, use_one_torch_thread
from hyrt.nn.whole_graph.attention import attend_backward_into, attend_into
from hyrt.nn.whole_graph.maximum import largest_into
from hyrt.nn.whole_graph.spmm import spmm_into
from hyrt.objective.classification import Classification
from hyrt.predict.calibrate.host import CacheSweep
from hyrt.predict.whole_graphs.whole_graph_sizes import WholeGraphSizes
from hyrt.predict.whole_graphs.whole_graph_work import can_say, whole_graph_step
from hyrt.sampling.full.full_sampler import FullSampler

# Matrix sizes of which all, some and almost no rows fit in a core's private cache or the shared cache.
_MATRIX_BYTES = (2**20, 2**24, 2**27)
# Heads and columns per head: rows of one cache line, and of several.
_HEADS = ((1, 16), (4, 32))
# Edges read at a time, per width: about a tenth of a second, and more rows than a cache holds.
_READS = {16: 2_000_000, 128: 750_000}
_REPETITIONS, _MAX_SPREAD = 3, 0.03


@dataclass(frozen=True, slots=True)
class _Probe:
    """A model and a random graph; the probes differ in their dominating terms."""

    kind: str
    vertices: int
    degree: int
    features: int
    hidden: int
    classes: int


# Few distinct widths, because each requires the compilation of a loop.
_PROBES = (
    _Probe("gcn", 1 << 9, 4, 16, 16, 16),
    _Probe("gcn", 1 << 17, 2, 16, 16, 16),
    _Probe("gcn", 1 << 16, 2, 128, 256, 64),
    _Probe("graphsage", 1 << 16, 2, 128, 64, 64),
    _Probe("gin", 1 << 16, 2, 64, 64, 16),
    _Probe("gat", 1 << 15, 2, 64, 128, 32),
)


# Probes for the loops of a kind of model: narrow and wide messages, few and many edges per vertex.
_LOOP_PROBES = ((1 << 15, 32, 16), (1 << 16, 8, 64), (1 << 15, 8, 16))


@contextmanager
def _team(cores: int) -> Iterator[Workers]:
    """Yield the worker threads of the measurements."""
    with (
        Workers(cores, "hyrt.calibrate.train", on_start=use_one_torch_thread, pool=BufferPool()) as workers,
        torch_threads(1),
    ):
        yield workers


def loop_cost(kind: str, rates: WholeGraphRates) -> LoopCost | None:
    """Measure the edge loops of a kind of model; None if it has none, or torch computes them.

    Parameters
    ----------
    kind
        Kind of model.
    rates
        Rates of all other parts of a step on this machine.
    """
    terms, seconds = [], []
    with _team(rates.threads) as workers:
        for vertices, degree, width in _LOOP_PROBES:
            probe = _Probe(kind, vertices, degree, width, width, width)
            if not can_say(_model(probe)):
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
    edge_s, value_s = non_negative(np.array(terms) / np.array(seconds)[:, None])
    return LoopCost(edge_s=float(edge_s), value_s=float(value_s))


def whole_graph_rates(cores: int) -> WholeGraphRates:
    """Measure this machine with all its cores.

    Raises
    ------
    HyrtError
        If a step fails.
    """
    with _team(cores) as workers:
        reads = tuple(_reads(workers))
        mask_s = _mask_s(workers)
        loop_ratios = _loop_ratios(workers)
        gather_rates = WholeGraphRates(
            threads=cores, reads=reads, mask_s=mask_s, call_s=0.0, macs_per_s=math.inf, values_per_s=math.inf
        )
        terms, seconds = [], []
        for probe in _PROBES:
            step, measured_s = _measured_step(probe, workers)
            rest_s = measured_s - gather_rates.reads_s(step.reads, cores)
            # If the gathers alone appear to take longer than the step, the remainder is noise.
            terms.append([step.calls, step.macs, step.values])
            seconds.append(max(rest_s, 0.1 * measured_s))
    call_s, mac_s, value_s = non_negative(np.array(terms) / np.array(seconds)[:, None])
    return WholeGraphRates(
        threads=cores,
        reads=reads,
        mask_s=mask_s,
        call_s=float(call_s),
        macs_per_s=1 / mac_s if mac_s else math.inf,
        values_per_s=1 / value_s if value_s else math.inf,
        looped=loop_ratios,
    )


def _reads(workers: Workers) -> Iterator[ReadCost]:
    """Yield the costs of reading rows, from two widths each."""
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
            yield ReadCost(
                kind=kind,  # type: ignore[arg-type]
                back=is_backward,
                matrix_bytes=matrix_bytes,
                row_s=max(0.0, short_s - 4 * width_low * byte_s),
                gb_s=1e-9 / byte_s,
            )


def _random_topology(vertices: int, edges: int) -> Topology:
    """Create random edges, approximately `edges` in number, which are representative for reading times."""
    random, degree = np.random.default_rng(0), max(1, edges // vertices)
    indices = random.integers(0, vertices, (vertices, degree), dtype=np.int32)
    indices.sort(axis=1)
    return Topology(np.arange(0, vertices * degree + 1, degree, dtype=np.int64), indices.reshape(-1))


def _read_s(topology: Topology, heads: int, columns: int, workers: Workers) -> tuple[float, float, float]:
    """Return the seconds per row: of a sum, of attention, and of the attention gradient."""
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
    # Vertices also read their own rows.
    num_rows = topology.num_edges + rows
    return add_s / num_rows, attend_s / num_rows, backward_s / num_rows


def _loop_ratios(workers: Workers) -> dict[str, float]:
    """Return the time of the loops used with chunks, relative to the compiled operators."""
    heads, columns = _HEADS[-1]
    width = heads * columns
    rows = _MATRIX_BYTES[1] // (4 * width)
    topology = _random_topology(rows, _READS[width])
    x, out, positive, grad, x_grad = (torch.ones(rows, width).numpy() for _ in range(5))
    vertex_arrays = [torch.ones(rows, heads).numpy() for _ in range(6)]
    at_source, at_destination, lse, _, source_grad, destination_grad = vertex_arrays
    winners, scale = np.zeros((rows, width), np.int32), np.ones(rows, np.float32)
    weighted = WholeEdges(topology, has_loops=True, row_scale=scale, loop_scale=scale)
    plain = WholeEdges(topology).by_destination(None)
    by_destination, by_source = (
        weighted.by_destination(None),
        WholeEdges(topology, has_loops=True).by_source(None),
    )
    sums, largest = LoopedSum(None, has_loops=True), largest_loops(width)[0]
    attention = looped_attention(heads, columns, 0.2, None)
    add_s, attend_s, backward_s = (
        row_s * (topology.num_edges + rows) for row_s in _read_s(topology, heads, columns, workers)
    )

    def largest_by_operator() -> None:
        largest_into(topology.indptr, topology.indices, x, out, winners, workers=workers)

    operator_s = {
        "sum": add_s,
        "max": _min_s(largest_by_operator),
        "attention": attend_s,
        "attention back": backward_s,
    }
    operands = [x, at_source, at_destination]
    edges = WholeEdges(topology, has_loops=True).by_destination(None)
    looped: dict[str, Callable[[], object]] = {
        "sum": lambda: sums.forward(by_destination, x, out, workers),
        "max": lambda: run_loop(largest, plain, [x], (out, winners), None, workers),
        "attention": lambda: attention.forward(edges, operands, out, lse, workers),
        "attention back": lambda: run_attention_back(
            *(attention, edges, by_source, operands, (lse, positive), grad),
            *((x_grad, source_grad, destination_grad), workers),
        ),
    }
    return {name: _min_s(work) / operator_s[name] for name, work in looped.items()}


def _mask_s(workers: Workers) -> float:
    """Return the seconds that a mask adds to attention, per edge and head."""
    heads, columns = _HEADS[-1]
    rows = _MATRIX_BYTES[1] // (4 * heads * columns)
    topology = _random_topology(rows, _READS[heads * columns])
    p, out, positive = (torch.ones(rows, heads, columns).numpy() for _ in range(3))
    at_source, at_destination, lse, weight = (torch.ones(rows, heads).numpy() for _ in range(4))

    def attend(mask: AttentionMask | None) -> None:
        attend_into(
            topology.indptr, topology.indices, p, at_source, at_destination, out, lse, positive, weight,
            mask=mask, workers=workers,
        )  # fmt: skip

    masked_s = _min_s(lambda: attend(AttentionMask.of(0.5, 0, 0, 1)))
    return max(0.0, masked_s - _min_s(lambda: attend(None))) / (heads * (topology.num_edges + rows))


def _model(probe: _Probe) -> GNN:
    widths = {"in_features": probe.features, "hidden": probe.hidden, "num_classes": probe.classes}
    return GNN(Architecture(kind=probe.kind, **widths))  # type: ignore[arg-type]


def _measured_step(probe: _Probe, workers: Workers) -> tuple[WholeGraphStep, float]:
    """Return the work of a step, and its measured time."""
    topology = _random_topology(probe.vertices, probe.vertices * probe.degree)
    # The transpose of a random graph is another random graph with the same reading time.
    topology.__dict__["is_symmetric"] = True
    all_vertices = np.ones(probe.vertices, np.bool_)
    graph = Graph.of_arrays(
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
    assert batch.whole is not None
    batch.whole.topology.__dict__["is_symmetric"] = True
    matrix = graph.features.matrix
    assert matrix is not None
    replica = FullGraphReplica.of(model, batch.whole, InPlace(matrix), memory_bytes=0)
    with working(workers):
        seconds = _min_s(lambda: replica.step(batch, Classification(), workers))
    sizes = WholeGraphSizes(
        vertices=probe.vertices,
        edges=topology.num_edges,
        targets=probe.vertices,
        target_edges=float(topology.num_edges),
        scored=0,
        held={},
    )
    return whole_graph_step(model, sizes, memory_bytes=0.0, threads=workers.count), seconds


def _min_s(work: Callable[[], object]) -> float:
    """Return the minimum of some repetitions with cold caches, since disturbances only add time.

    Two repetitions suffice if they agree.
    """
    sweep = CacheSweep()
    work()  # The first call may compile.
    spent: list[float] = []
    while len(spent) < _REPETITIONS and not (len(spent) > 1 and max(spent) <= (1 + _MAX_SPREAD) * min(spent)):
        sweep()
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return min(spent)
