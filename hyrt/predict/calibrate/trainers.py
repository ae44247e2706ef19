"""Measurement of training steps of several shapes on a device, and of short training runs."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hyrt_perfmodel.calibration_fit import FittedRates, fit_rates
from hyrt_perfmodel.model_workload import hetero_workload, model_workload
from hyrt_perfmodel.workload import Workload

from hyrt.config import Config, build_config
from hyrt.device import Device
from hyrt.device.calls import call_device, report_device_on_exit
from hyrt.device.capabilities import usable_forms
from hyrt.errors import DeviceFaultError
from hyrt.graph.graph import Graph, VertexTable
from hyrt.graph.row_source import DenseFeatures, HeteroRows, SparseFeatures
from hyrt.nn.hetero.inputs import HeteroInPlaceInput, HeteroInput
from hyrt.nn.layer import AggregatedFeatures, InPlaceFeatures
from hyrt.nn.models.model_kind import find_model
from hyrt.nn.operators import attention
from hyrt.nn.operators.sparse import SparseRows
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan, plan_input
from hyrt.predict.calibrate.host import LARGE, SMALL, Timing, sparse_features, summarize
from hyrt.predict.hetero_workload import hetero_graph_sizes, relation_sizes
from hyrt.predict.predict_run import predict_run
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler, RelationSampler
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.telemetry.events import Event, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.setup import build_model
from hyrt.training.train import Training


@dataclass(frozen=True, slots=True)
class ShortRun:
    """Times of the full steps of a run. The last step of an epoch is excluded, because it may be smaller."""

    iteration_s: float
    """Median over groups of steps of the wall time per step."""
    gap_s: float
    """Median over groups of steps of the time per step outside propagation and synchronization."""
    stage_s: Mapping[str, float]
    """Mean busy time per step, by stage."""
    split: Mapping[str, int]
    threads: Mapping[str, int]
    """Number of host threads by stage. `split` is the number of targets per trainer."""


def short_run(config: Config, graph: Graph, *, warm: int, steps: int, balance: bool = False) -> ShortRun:
    """Train for `warm` steps and then for at least `steps` measured steps, without evaluation and output.

    With `balance`, the run starts with the predicted assignment and its policy may change it; otherwise the
    assignment is fixed. Raises HyrtError if the run fails.
    """
    groups: list[StepMetrics] = []

    def record(event: Event) -> None:
        if isinstance(event, StepMetrics):
            groups.append(event)

    def is_complete() -> bool:
        return bool(groups) and groups[-1].step >= warm + steps

    # Set more epochs than necessary, because the run is stopped early.
    train = config.train.model_copy(update={"epochs": warm + steps})
    evaluate = config.evaluate.model_copy(update={"every": 0})
    # Disable the prediction, because a measurement must not depend on an older calibration.
    fixed = config.balance.model_copy(update={"policy": "static", "predict": False})
    Training(
        build_run(
            config.model_copy(
                update={"train": train, "evaluate": evaluate, "balance": config.balance if balance else fixed}
            ),
            graph,
            emit=record,
            should_stop=is_complete,
            predict=predict_run,
        )
    ).run()
    measured = _full_step_groups([group for group in groups if group.step - len(group.losses) >= warm])
    gaps = [group.step_s - group.stage_s["propagate"] - group.stage_s["synchronize"] for group in measured]
    return ShortRun(
        _median([group.step_s for group in measured], measured),
        _median(gaps, measured),
        {
            stage: sum(group.stage_s[stage] * len(group.losses) for group in measured)
            / sum(len(group.losses) for group in measured)
            for stage in measured[0].stage_s
        },
        measured[-1].split,
        measured[-1].threads,
    )


def _full_step_groups(groups: list[StepMetrics]) -> list[StepMetrics]:
    """Return the groups that do not contain the last step of an epoch, or all groups if there are none."""
    return [group for group in groups if group.steps_done < group.steps_per_epoch] or groups


def _median(values: Sequence[float], groups: Sequence[StepMetrics]) -> float:
    """Return the median of one value per group, weighted by the number of steps."""
    ordered = sorted(zip(values, (len(group.losses) for group in groups), strict=True))
    half, seen = sum(count for _, count in ordered) / 2, 0
    for value, count in ordered:
        seen += count
        if seen >= half:
            return value
    raise ValueError("no steps were measured")


def with_widths(graph: Graph, features: int, classes: int) -> Graph:
    """Return a heterogeneous graph in which type t has `features` / 2**t columns.

    Types without features do not get any.
    """
    types, rows = graph.types, graph.features
    assert types is not None
    assert isinstance(rows, HeteroRows)
    tables = [
        None
        if table is None
        else DenseFeatures(np.ones((types.count(name), max(1, features >> number)), np.float32))
        for number, (name, table) in enumerate(zip(types.vertex_types, rows.tables, strict=True))
    ]
    labels = np.where(graph.labels < 0, graph.labels, graph.labels % classes)
    return replace(graph, vertices=VertexTable(HeteroRows(types, tuple(tables)), labels, graph.masks))


def relation_sampler(graph: Graph, fanouts: tuple[int, ...], targets: int) -> RelationSampler:
    """Create a sampler with equal fan-outs for all relations."""
    assert graph.types is not None
    by_relation = [[fanout] * len(graph.types.relations) for fanout in fanouts]
    return RelationSampler(graph, graph.split("train"), by_relation, targets, 0)


def hetero_work(kind: str, batch: MiniBatch, graph: Graph, **widths: Any) -> Workload:
    """Return the work of a heterogeneous mini-batch. `widths` are parameters of `hetero_workload`."""
    assert graph.types is not None
    sizes = relation_sizes(batch, graph.types)
    return hetero_workload(kind, sizes, hetero_graph_sizes(graph, batch.targets).widths, **widths)


DENSE = "synthetic:tiny,edges=200k"
"""Graph with many edges per vertex."""

HETERO = "synthetic:hetero"
"""Graph with several vertex types and relations."""

HEADS = 4
CHUNK_ROWS = {"gat": attention.GRAIN}
"""Rows that a CPU thread computes at a time, for model kinds that do not use `product.GRAIN`."""
# Repeat short steps more often, because their times vary more.
_MIN_REPETITIONS, _MAX_REPETITIONS, _ENOUGH_S = 2, 10, 0.15
# Number of unmeasured steps, which compile kernels, allocate buffers and tune the threads' division of work.
_WARMUP_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Shape of a mini-batch and widths of a model to measure."""

    features: int
    hidden: int
    classes: int
    targets: int
    fanouts: tuple[int, ...]
    """Fan-out of each layer, starting with the layer of the targets."""
    row_entries: int = 0
    """Number of stored values per sparse row; 0 for dense rows."""
    graph: str = LARGE
    """Name of the graph whose topology is sampled."""


# One term dominates each probe: products, fixed costs, values or aggregation. If vertices have few edges, the
# rates of aggregation and of values cannot be separated: the value costs of GIN were attributed to
# aggregation, and predicted times of subgraphs with many edges were up to twice too long. Therefore, two
# probes have 25 edges per vertex, one of them with narrow rows, which cost more per byte. Small probes
# determine fixed costs: with wide and narrow weights, because there is a cost per weight, and with two and
# three layers, because a third layer makes other calls than the first two.
PROBES = (
    Probe(features=128, hidden=256, classes=48, targets=1024, fanouts=(5, 5)),
    Probe(features=128, hidden=256, classes=48, targets=128, fanouts=(10, 5, 5)),
    # Numbers of rows are multiples of the BLAS libraries' padding, which would otherwise dominate the times.
    Probe(features=128, hidden=256, classes=48, targets=128, fanouts=(2, 2)),
    Probe(features=100, hidden=64, classes=47, targets=1024, fanouts=(25, 10), graph=SMALL),
    Probe(features=100, hidden=64, classes=47, targets=128, fanouts=(10, 10)),
    Probe(features=10, hidden=512, classes=2, targets=1024, fanouts=(5, 5)),
    Probe(features=10, hidden=512, classes=2, targets=256, fanouts=(10, 10)),
    Probe(features=10, hidden=128, classes=2, targets=512, fanouts=(25, 10, 10), graph=SMALL),
    Probe(features=10, hidden=128, classes=2, targets=1024, fanouts=(25, 25, 25), graph=DENSE),
    Probe(features=10, hidden=32, classes=2, targets=1024, fanouts=(25, 25, 25), graph=DENSE),
    # This probe has many narrow rows, which show the cost per row.
    Probe(features=10, hidden=32, classes=2, targets=1024, fanouts=(5, 5), graph=SMALL),
    Probe(features=10, hidden=32, classes=2, targets=64, fanouts=(5, 5), graph=SMALL),
    Probe(features=10, hidden=32, classes=2, targets=16, fanouts=(3, 2, 2), graph=SMALL),
)
# Launches take almost all of this step over sparse rows.
SPARSE_PROBE = Probe(
    features=64, hidden=32, classes=2, targets=16, fanouts=(3, 2), row_entries=8, graph=SMALL
)

# Probes on heterogeneous graphs, with few or many edges per segment (the edges of a relation into a vertex).
HETERO_PROBES = (
    Probe(features=128, hidden=256, classes=48, targets=1024, fanouts=(5, 5), graph=HETERO),
    Probe(features=128, hidden=256, classes=48, targets=128, fanouts=(5, 5), graph=HETERO),
    Probe(features=128, hidden=64, classes=48, targets=1024, fanouts=(10, 5), graph=HETERO),
    Probe(features=128, hidden=64, classes=48, targets=128, fanouts=(10, 5), graph=HETERO),
    Probe(features=16, hidden=256, classes=8, targets=256, fanouts=(10, 5), graph=HETERO),
    Probe(features=16, hidden=64, classes=8, targets=1024, fanouts=(10, 10), graph=HETERO),
    Probe(features=16, hidden=64, classes=8, targets=256, fanouts=(5, 5, 5), graph=HETERO),
    Probe(features=16, hidden=32, classes=8, targets=512, fanouts=(25, 25), graph=HETERO),
    Probe(features=16, hidden=32, classes=8, targets=512, fanouts=(2, 2), graph=HETERO),
    Probe(features=16, hidden=32, classes=8, targets=64, fanouts=(5, 5), graph=HETERO),
    Probe(features=16, hidden=32, classes=8, targets=16, fanouts=(3, 2), graph=HETERO),
    Probe(features=16, hidden=32, classes=8, targets=16, fanouts=(2, 2, 2), graph=HETERO),
)

# Long and short steps, with enough rows for several chunks: they show the gain from more threads and the cost
# of waking threads.
SHARED_PROBES = (PROBES[0], *PROBES[3:6])
HETERO_SHARED_PROBES = (*HETERO_PROBES[:4], HETERO_PROBES[5])


@dataclass(frozen=True, slots=True)
class ProbeMeasurement:
    """Measured times and sizes of a probe."""

    workload: Workload
    """Sizes of the mini-batch. The first layer has 0 edges if loading has aggregated the input."""
    propagate: Timing
    transfer: Timing
    moved_bytes: float
    """Number of bytes that are transferred as inputs."""
    sorted_edges_per_s: float = math.inf
    """Rate of sorting edges by source before `propagate`, per second; infinite if `propagate` sorts them."""


class ProbeGraphs:
    """Graphs with the features and classes that a probe needs. Features are created once per width.

    `graphs` contains the topologies, splits and labels by the graph names in the probes.
    """

    def __init__(self, graphs: Mapping[str, Graph]) -> None:
        self._graphs = graphs
        self._features: dict[tuple[str, int, int], DenseFeatures | SparseFeatures] = {}

    def graph(self, probe: Probe) -> Graph:
        """Return the graph with the widths of a probe."""
        graph, key = self._graphs[probe.graph], (probe.graph, probe.features, probe.row_entries)
        if graph.types is not None:
            return with_widths(graph, probe.features, probe.classes)
        if key not in self._features:
            shape = (graph.num_vertices, probe.features)
            self._features[key] = (
                sparse_features(*shape, probe.row_entries)
                if probe.row_entries
                else DenseFeatures(np.ones(shape, np.float32))
            )
        table = VertexTable(self._features[key], graph.labels % probe.classes, graph.masks)
        return Graph(graph.name, graph.topology, table)


def measure_probe(
    device: Device, kind: str, probe: Probe, graph: Graph, *, plain: bool = False
) -> ProbeMeasurement:
    """Train on a few mini-batches with the shape of `probe`, after unmeasured ones that compile kernels.

    `plain` disables the model kind's default dropout and norm. Raises UnsupportedModelError if the device
    does not support the kind.
    """
    model = build_model(_settings(kind, probe, plain=plain), graph)
    name, parameters = device.info.name, list(model.parameters())
    call_device(name, "load", lambda: device.load(model, parameters), fault=DeviceFaultError)
    plan = plan_input(model, graph, usable_forms(device, graph), fuse=True)
    sampler: Sampler
    if graph.types is None:
        sampler = NeighborSampler(graph, graph.split("train"), probe.fanouts, probe.targets, 0)
    else:
        sampler = relation_sampler(graph, probe.fanouts, probe.targets)
    loader = Loader(graph.features)
    propagate: list[float] = []
    transfer: list[float] = []
    moved, edges, sorting = 0.0, 0, []
    is_host = device.info.kind == "cpu"
    # Skip the last step of an epoch, which may be smaller.
    full_size = len(sampler.units(0))
    steps = ((step, units) for step in itertools.count() if len(units := sampler.units(step)) == full_size)
    with report_device_on_exit(name, "measurement"), Workers(1, "hyrt.calibrate") as workers:
        for step, units in itertools.islice(steps, _WARMUP_STEPS + _MAX_REPETITIONS):
            if (
                len(propagate) >= _WARMUP_STEPS + _MIN_REPETITIONS
                and sum(propagate[_WARMUP_STEPS:]) > _ENOUGH_S
            ):
                break
            batch = sampler.sample(step, units, workers, in_place=plan.in_place)
            loader.load(batch, plan, workers)
            # Exclude heterogeneous models, which sort the edges of relations in `propagate`.
            if is_host and graph.types is None:
                started = time.perf_counter()
                edges = _sort_by_source(batch)
                sorting.append(time.perf_counter() - started)
            started = time.perf_counter()
            staged = device.transfer(batch)
            staged_at = time.perf_counter()
            result = device.propagate(staged)
            done_at = time.perf_counter()
            # Prefer the device's times, because a transfer may continue asynchronously during `propagate`.
            transfer.append(result.seconds.get("transfer") or staged_at - started)
            propagate.append(result.seconds.get("propagate") or done_at - staged_at)
            sizes = _workload(kind, probe, batch, plan, graph)
            moved = _input_bytes(batch)
            batch.release()
    return ProbeMeasurement(
        sizes,
        summarize(propagate[_WARMUP_STEPS:]),
        summarize(transfer[_WARMUP_STEPS:]),
        moved,
        edges / summarize(sorting[_WARMUP_STEPS:]).seconds if edges else math.inf,
    )


def _sort_by_source(batch: MiniBatch) -> int:
    """Sort the edges by source for the backward pass, and return the number of edges."""
    blocks = [block for block in batch.blocks if not block.in_place]
    for block in blocks:
        block.transposed()
    return sum(block.num_edges for block in blocks)


def _settings(kind: str, probe: Probe, *, plain: bool) -> Config:
    model = {"kind": kind, "hidden": probe.hidden, "layers": len(probe.fanouts), "heads": HEADS}
    if plain:
        model |= {"dropout": 0.0, "norm": "none"}
    return build_config({"model": model, "sampler": {"fanout": list(probe.fanouts)}})


def _workload(kind: str, probe: Probe, batch: MiniBatch, plan: InputPlan, graph: Graph) -> Workload:
    if graph.types is not None:
        return hetero_work(kind, batch, graph, hidden=probe.hidden, classes=probe.classes, heads=HEADS)
    sizes = NeighborSettings().batch_sizes(batch, len(batch.targets))
    edges = (0.0, *sizes.edges[1:]) if plan.form == "aggregated" else sizes.edges
    widths = [probe.features, *[probe.hidden] * (len(edges) - 1), probe.classes]
    model_kind = find_model(kind)
    work = model_workload(
        model_kind.costs_like or "gcn",
        sizes.vertices,
        edges,
        widths,
        heads=HEADS,
        hidden=probe.hidden,
        row_entries=float(probe.row_entries) if plan.form == "sparse" else None,
    )
    products = model_kind.products({})
    return work if products is None else work.with_products(*products)


def _input_bytes(batch: MiniBatch) -> float:
    inputs = batch.inputs
    if isinstance(inputs, AggregatedFeatures):
        inputs = inputs.values
    if isinstance(inputs, HeteroInput):
        return float(sum(4 * rows.numel() for rows in inputs.matrices if rows is not None))
    if inputs is None or isinstance(inputs, InPlaceFeatures | HeteroInPlaceInput | SparseRows):
        return 0.0  # Sparse rows are read in place by devices that accept them.
    assert isinstance(inputs, torch.Tensor)
    return float(inputs.numel() * inputs.element_size())


def fit_trainer(measured: Sequence[ProbeMeasurement]) -> FittedRates:
    """Fit a device's rates for one model kind. Terms without an effect get an infinite rate."""
    return fit_rates([entry.workload for entry in measured], [entry.propagate.seconds for entry in measured])


def fit_link(measured: Sequence[ProbeMeasurement]) -> tuple[float, float]:
    """Fit a link's latency (seconds) and bandwidth (1e9 bytes per second) to transfers of several sizes."""
    moved = np.array([entry.moved_bytes for entry in measured])
    seconds = np.array([entry.transfer.seconds for entry in measured])
    slope, latency_s = np.polyfit(moved, seconds, 1, w=1 / seconds)
    if slope <= 0 or latency_s < 0:
        # The latency cannot be separated from noise, so attribute all time to the bandwidth.
        return 0.0, float(np.median(moved / seconds)) / 1e9
    return float(latency_s), float(1 / slope) / 1e9
