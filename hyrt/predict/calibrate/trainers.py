"""What a trainer's step takes: whole mini-batches of several shapes, through the device protocol alone."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hyrt_perfmodel.calibration.fit_rates import FittedRates, fit_rates
from hyrt_perfmodel.workloads.model_workload import model_workload
from hyrt_perfmodel.workloads.workload import Workload

from hyrt.config import Config, build_config
from hyrt.device import Device
from hyrt.device.calls import call_device, named_at_the_end
from hyrt.device.capabilities import usable_forms
from hyrt.errors import DeviceFault
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.graph.vertex_table import VertexTable
from hyrt.machine.workers import Workers
from hyrt.nn.inputs import Aggregated, InPlace
from hyrt.nn.models.model_kind import find_model
from hyrt.nn.operators import attention
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.typed.typed_input import TypedInPlace, TypedInput
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan, plan_input
from hyrt.predict.calibrate.host import LARGE, SMALL, Timing, sparse_features, summarize
from hyrt.predict.calibrate.typed_probes import of_widths, relation_sampler, typed_work
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.sampling.sampler import Sampler
from hyrt.training.setup import build_model

DENSE = "synthetic:tiny,edges=200k"
"""A graph with many edges for its vertices."""

TYPED = "synthetic:typed"
"""A graph of several types and relations."""

HEADS = 4
CHUNK_ROWS = {"gat": attention.GRAIN}
"""Rows that a thread of the CPU trainer computes at a time, by kind of model; `product.GRAIN` for others."""
# Short steps are repeated more often: their times are less sure.
_LEAST, _MOST, _ENOUGH_S = 2, 10, 0.15
# The first ones compile kernels, make the buffers that the others use again, and show a team of threads which
# work is worth sharing.
_WARM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One shape of a mini-batch."""

    features: int
    hidden: int
    classes: int
    """`features`, `hidden` and `classes`: widths of the model."""
    targets: int
    fanouts: tuple[int, ...]
    """`targets` and `fanouts`: of the mini-batch; the targets' fan-out first."""
    row_entries: int = 0
    """Stored values of a sparse row; 0 for dense rows."""
    graph: str = LARGE
    """The graph whose topology is sampled."""


# They differ in which term they are made of: products, fixed costs, values, and aggregation. Where vertices
# have few edges, the rates of aggregation and of values cannot be told apart: what GIN's values cost was
# taken for aggregation, and subgraphs with many edges were predicted up to twice too long. So two probes have
# 25 edges for each vertex, one of them with narrow rows, of which each costs more than its bytes. Small ones
# tell fixed costs: with wide weights and with narrow ones, since each weight costs, and with two layers and
# with three, since a further layer costs other calls than the first two.
PROBES = (
    Probe(features=128, hidden=256, classes=48, targets=1024, fanouts=(5, 5)),
    Probe(features=128, hidden=256, classes=48, targets=128, fanouts=(10, 5, 5)),
    # Rows in full multiples of what the libraries pad chunks to: of fewer, padding is most of the products.
    Probe(features=128, hidden=256, classes=48, targets=128, fanouts=(2, 2)),
    Probe(features=100, hidden=64, classes=47, targets=1024, fanouts=(25, 10), graph=SMALL),
    Probe(features=100, hidden=64, classes=47, targets=128, fanouts=(10, 10)),
    Probe(features=10, hidden=512, classes=2, targets=1024, fanouts=(5, 5)),
    Probe(features=10, hidden=512, classes=2, targets=256, fanouts=(10, 10)),
    Probe(features=10, hidden=128, classes=2, targets=512, fanouts=(25, 10, 10), graph=SMALL),
    Probe(features=10, hidden=128, classes=2, targets=1024, fanouts=(25, 25, 25), graph=DENSE),
    Probe(features=10, hidden=32, classes=2, targets=1024, fanouts=(25, 25, 25), graph=DENSE),
    # Many narrow rows: a row costs, however narrow it is.
    Probe(features=10, hidden=32, classes=2, targets=1024, fanouts=(5, 5), graph=SMALL),
    Probe(features=10, hidden=32, classes=2, targets=64, fanouts=(5, 5), graph=SMALL),
    Probe(features=10, hidden=32, classes=2, targets=16, fanouts=(3, 2, 2), graph=SMALL),
)
# A step over sparse rows of which launches are nearly all.
SPARSE_PROBE = Probe(
    features=64, hidden=32, classes=2, targets=16, fanouts=(3, 2), row_entries=8, graph=SMALL
)

# The same of a typed graph, whose runs, the edges of one relation into one vertex, have many edges or few.
TYPED_PROBES = (
    Probe(features=128, hidden=256, classes=48, targets=1024, fanouts=(5, 5), graph=TYPED),
    Probe(features=128, hidden=256, classes=48, targets=128, fanouts=(5, 5), graph=TYPED),
    Probe(features=128, hidden=64, classes=48, targets=1024, fanouts=(10, 5), graph=TYPED),
    Probe(features=128, hidden=64, classes=48, targets=128, fanouts=(10, 5), graph=TYPED),
    Probe(features=16, hidden=256, classes=8, targets=256, fanouts=(10, 5), graph=TYPED),
    Probe(features=16, hidden=64, classes=8, targets=1024, fanouts=(10, 10), graph=TYPED),
    Probe(features=16, hidden=64, classes=8, targets=256, fanouts=(5, 5, 5), graph=TYPED),
    Probe(features=16, hidden=32, classes=8, targets=512, fanouts=(25, 25), graph=TYPED),
    Probe(features=16, hidden=32, classes=8, targets=512, fanouts=(2, 2), graph=TYPED),
    Probe(features=16, hidden=32, classes=8, targets=64, fanouts=(5, 5), graph=TYPED),
    Probe(features=16, hidden=32, classes=8, targets=16, fanouts=(3, 2), graph=TYPED),
    Probe(features=16, hidden=32, classes=8, targets=16, fanouts=(2, 2, 2), graph=TYPED),
)

# Steps with rows for several chunks, long ones and short: with them, what further threads spare is seen, and
# what waking them costs.
SHARED_PROBES = (PROBES[0], *PROBES[3:6])
TYPED_SHARED_PROBES = (*TYPED_PROBES[:4], TYPED_PROBES[5])


@dataclass(frozen=True, slots=True)
class Measured:
    """A probe on a device."""

    workload: Workload
    """The sizes of the mini-batch; the first layer's edges are 0 where the input came aggregated."""
    propagate: Timing
    """The time of the device's own work."""
    transfer: Timing
    """Until the mini-batch is there."""
    moved_bytes: float
    """The bytes of its inputs."""
    sorted_edges_per_s: float = math.inf
    """Edges a second that are sorted by their sources before `propagate` needs them so; infinite where that
    is a part of it."""


class Widths:
    """Graphs with features and classes of probes' widths; features are made once a width.

    Parameters
    ----------
    graphs
        Whose topologies, splits and labels are used, by the names that probes have for them.
    """

    def __init__(self, graphs: Mapping[str, Graph]) -> None:
        self._graphs = graphs
        self._features: dict[tuple[str, int, int], DenseFeatures | SparseFeatures] = {}

    def of(self, probe: Probe) -> Graph:
        """The graph for a probe."""
        graph, key = self._graphs[probe.graph], (probe.graph, probe.features, probe.row_entries)
        if graph.types is not None:
            return of_widths(graph, probe.features, probe.classes)
        if key not in self._features:
            shape = (graph.num_vertices, probe.features)
            self._features[key] = (
                sparse_features(*shape, probe.row_entries)
                if probe.row_entries
                else DenseFeatures(np.ones(shape, np.float32))
            )
        table = VertexTable(self._features[key], graph.labels % probe.classes, graph.masks)
        return Graph(graph.name, graph.topology, table)


def measure(device: Device, kind: str, probe: Probe, graph: Graph, *, plain: bool = False) -> Measured:
    """Train a few mini-batches of one shape; the first ones, which compile, are left out.

    Parameters
    ----------
    device, kind, probe
        What trains, a kind of model, and its shape.
    graph
        A graph of the probe's widths.
    plain
        Whether to leave out the dropout and the norm that the kind has by default.

    Raises
    ------
    UnsupportedModel
        If the device cannot run the kind of model.
    """
    model = build_model(_settings(kind, probe, plain=plain), graph)
    name, parameters = device.info.name, list(model.parameters())
    call_device(name, "load", lambda: device.load(model, parameters), fault=DeviceFault)
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
    # The last step of an epoch, which may be smaller, is left out.
    whole = len(sampler.units(0))
    drawn = ((step, units) for step in itertools.count() if len(units := sampler.units(step)) == whole)
    with named_at_the_end(name, "measurement"), Workers(1, "hyrt.calibrate") as workers:
        for step, units in itertools.islice(drawn, _WARM + _MOST):
            if len(propagate) >= _WARM + _LEAST and sum(propagate[_WARM:]) > _ENOUGH_S:
                break
            batch = sampler.sample(step, units, workers, in_place=plan.in_place)
            loader.load(batch, plan, workers)
            # Models of typed graphs sort the edges of relations, as a part of `propagate`.
            if is_host and graph.types is None:
                started = time.perf_counter()
                edges = _sort_by_source(batch)
                sorting.append(time.perf_counter() - started)
            started = time.perf_counter()
            staged = device.transfer(batch)
            staged_at = time.perf_counter()
            result = device.propagate(staged)
            done_at = time.perf_counter()
            # A transfer may go on after its call, into propagate's: the device's own clock tells them apart.
            transfer.append(result.seconds.get("transfer") or staged_at - started)
            propagate.append(result.seconds.get("propagate") or done_at - staged_at)
            sizes = _workload(kind, probe, batch, plan, graph)
            moved = _input_bytes(batch)
            batch.release()
    return Measured(
        sizes,
        summarize(propagate[_WARM:]),
        summarize(transfer[_WARM:]),
        moved,
        edges / summarize(sorting[_WARM:]).seconds if edges else math.inf,
    )


def _sort_by_source(batch: MiniBatch) -> int:
    """Bring the edges along which gradients go back into the form that this takes; how many there are."""
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
        return typed_work(kind, batch, graph, hidden=probe.hidden, classes=probe.classes, heads=HEADS)
    sizes = NeighborSettings().sizes_of(batch, len(batch.targets))
    edges = (0.0, *sizes.edges[1:]) if plan.form == "aggregated" else sizes.edges
    widths = [probe.features, *[probe.hidden] * (len(edges) - 1), probe.classes]
    made = find_model(kind)
    work = model_workload(
        made.costs_like or "gcn",
        sizes.vertices,
        edges,
        widths,
        heads=HEADS,
        hidden=probe.hidden,
        row_entries=float(probe.row_entries) if plan.form == "sparse" else None,
    )
    products = made.products({})
    return work if products is None else work.with_products(*products)


def _input_bytes(batch: MiniBatch) -> float:
    inputs = batch.inputs
    if isinstance(inputs, Aggregated):
        inputs = inputs.values
    if isinstance(inputs, TypedInput):
        return float(sum(4 * rows.numel() for rows in inputs.matrices if rows is not None))
    if inputs is None or isinstance(inputs, InPlace | TypedInPlace | SparseRows):
        return 0.0  # No link carries them: who takes sparse rows reads them where they are.
    assert isinstance(inputs, torch.Tensor)
    return float(inputs.numel() * inputs.element_size())


def fit_trainer(measured: Sequence[Measured]) -> FittedRates:
    """Rates of a device for one kind of model; what is not measured is as for `fit_rates`."""
    return fit_rates([entry.workload for entry in measured], [entry.propagate.seconds for entry in measured])


def fit_link(measured: Sequence[Measured]) -> tuple[float, float]:
    """Latency in seconds and 1e9 bytes a second of a link, from transfers of several sizes."""
    moved = np.array([entry.moved_bytes for entry in measured])
    seconds = np.array([entry.transfer.seconds for entry in measured])
    slope, start = np.polyfit(moved, seconds, 1, w=1 / seconds)
    if slope <= 0 or start < 0:
        # Latency is lost in the noise: all of it is bandwidth.
        return 0.0, float(np.median(moved / seconds)) / 1e9
    return float(start), float(1 / slope) / 1e9
