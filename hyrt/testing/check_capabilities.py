"""Checks of optional capabilities: heterogeneous mini-batches, and sampling on the device."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.device import Device, StepResult
from hyrt.device.capabilities import device_sampler
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.hetero.hetero_gnn import HeteroGNN, get_graph_metadata
from hyrt.nn.hetero.inputs import HeteroInput, find_embeddings
from hyrt.objective.objective import sum_counts
from hyrt.pipeline.load import Loader
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.kernels import count_neighbors, prefix_sum, relabel, sample_neighbors
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import RelationSampler
from hyrt.sampling.sampler import Hop, HopSampler
from hyrt.testing import cases
from hyrt.testing.trial import (
    Trial,
    check_same_bits,
    copy_result,
    load_model,
    require,
    run_concurrently,
    run_step,
    skip_unless,
)

COUNTS = {"paper": 90, "author": 50, "field": 12}
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written by", "author"),
    ("paper", "about", "field"),
    ("field", "of", "paper"),
)
CLASSES, HIDDEN, SEED = 3, 7, 3
FANOUTS = (4, 3)
KINDS = ("rgcn", "rsage")
"""Model kinds that the reference implements."""


def hetero_checks_graph(*, weights: bool) -> Graph:
    """Build a graph of papers and authors with features of different widths, and fields without features.

    The graph is always the same. With `weights`, the edges of two relations have weights; all other edges
    have weight 1.
    """
    draw = np.random.default_rng(17)
    tables: dict[str, Any] = {
        "paper": draw.standard_normal((COUNTS["paper"], 5)).astype(np.float32),
        "author": draw.standard_normal((COUNTS["author"], 3)).astype(np.float32),
        "field": COUNTS["field"],
    }
    edges = {}
    for triple in RELATIONS:
        ends = COUNTS[triple[0]], COUNTS[triple[2]]
        cells = draw.choice(ends[0] * ends[1], min(400, ends[0] * ends[1] // 3), replace=False)
        edges[triple] = divmod(cells, ends[1])
    labels = draw.integers(0, CLASSES, COUNTS["paper"])
    labels[:CLASSES] = np.arange(CLASSES)
    all_papers, no_papers = np.ones(COUNTS["paper"], np.bool_), np.zeros(COUNTS["paper"], np.bool_)
    masks = {"train": all_papers, "val": no_papers, "test": no_papers}
    edge_weights = {
        triple: draw.uniform(0.3, 3, len(edges[triple][0])).astype(np.float32) for triple in RELATIONS[:2]
    }
    return build_hetero_graph(
        "checks", tables, edges, labels, masks, "paper", edge_weights if weights else None
    )


def hetero_checks_model(graph: Graph, kind: str) -> HeteroGNN:
    """Build a two-layer model with non-zero parameters, which are the same in every call."""
    shape = get_graph_metadata(graph)
    model = HeteroGNN(
        Architecture(kind=kind, in_features=HIDDEN, hidden=HIDDEN, num_classes=CLASSES, shape=shape)
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in (*model.parameters(), *(table.values for table in find_embeddings(model))):
            values.copy_(torch.randn(values.shape, generator=generator) * 0.3)
    return model


def hetero_batch(graph: Graph, targets: Sequence[int]) -> MiniBatch:
    """Return a loaded mini-batch for some papers."""
    assert graph.types is not None
    fanouts = [[fanout] * len(graph.types.relations) for fanout in FANOUTS]
    sampler = RelationSampler(graph, graph.split("train"), fanouts, 64, SEED)
    with Workers(1, "hyrt.testing") as alone:
        batch = sampler.sample(2, np.array(targets, np.int32), alone, in_place=False)
        assert batch.blocks[0].sources is not None
        batch.inputs = Loader(graph.features).hetero_rows(batch.blocks[0].sources, alone)
    return batch


@dataclass(frozen=True, slots=True)
class HeteroReference:
    """Expected float64 result of a heterogeneous mini-batch."""

    loss_sum: float
    gradients: list[Tensor]
    """Gradient of each parameter."""
    names: list[str]
    """Names of the parameters."""
    table: Tensor
    """Gradient of the embedding table, [rows, hidden]."""


def hetero_reference_step(model: HeteroGNN, graph: Graph, batch: MiniBatch) -> HeteroReference:
    """Compute one step of a model of one of `KINDS`, as its paper defines the model.

    R-GCN (Schlichtkrull et al., 2018) adds W_r times the mean of each relation's rows and W_0 times the
    vertex's row. R-GraphSAGE has one matrix per vertex type instead of W_0. If k of d edges were sampled,
    with weights w and total weight D of all d edges, each edge has the factor d / k times w / D.
    """
    twin = copy.deepcopy(model).double()
    p: dict[str, Tensor] = dict(twin.named_parameters())
    (table,) = find_embeddings(model)
    learned = table.values.detach().double().requires_grad_()
    x = _input_rows(p, learned, batch)
    for i, block in enumerate(batch.blocks):
        dst_rows = x[: block.num_dst]
        if model.architecture.kind == "rgcn":
            total = dst_rows @ p[f"layers.{i}.own"].T
        else:
            types = _types(block.destinations)
            total = torch.stack(
                [p[f"layers.{i}.own"][t] @ row for t, row in zip(types, dst_rows, strict=True)]
            )
        for mean, weight in zip(_means(graph, block), p[f"layers.{i}.weight"], strict=True):
            total = total + mean @ x @ weight.T
        x = total + p[f"layers.{i}.bias"]
        x = x if i else x.relu()
    labels = torch.from_numpy(batch.labels.astype(np.int64))
    loss = torch.nn.functional.cross_entropy(x, labels, reduction="sum")
    gradients = torch.autograd.grad(loss, [*p.values(), learned])
    return HeteroReference(float(loss.detach()), list(gradients[:-1]), list(p), gradients[-1])


def _types(vertices: NDArray[Any]) -> list[int]:
    ends = np.cumsum(list(COUNTS.values())).tolist()
    return [next(t for t, end in enumerate(ends) if v < end) for v in vertices.tolist()]


def _input_rows(p: dict[str, Tensor], learned: Tensor, batch: MiniBatch) -> Tensor:
    """Return the input row of each source, [num_src, hidden], from a projection or the embedding table."""
    inputs, sources = batch.inputs, batch.blocks[0].sources
    assert isinstance(inputs, HeteroInput)
    assert sources is not None
    next_row, rows = [0] * len(COUNTS), []
    for t in _types(sources):
        row = next_row[t]
        next_row[t] += 1
        matrix, numbers = inputs.matrices[t], inputs.tables[t]
        if matrix is None:
            assert numbers is not None
            rows.append(learned[int(numbers[row])])
        else:
            rows.append(p[f"input.maps.{t}.weight"] @ matrix[row].double() + p[f"input.maps.{t}.bias"])
    return torch.stack(rows)


def _means(graph: Graph, block: Block) -> Tensor:
    """Return the weight of each source's row in the mean of each relation, [R, num_dst, num_src]."""
    topology, types = graph.topology, graph.topology.edge_types
    assert types is not None
    assert block.edge_types is not None
    assert block.sources is not None
    out = torch.zeros(len(RELATIONS), block.num_dst, block.num_src, dtype=torch.float64)
    for i, v in enumerate(block.destinations.tolist()):
        sampled = np.arange(block.indptr[i], block.indptr[i + 1])
        for r in range(len(RELATIONS)):
            positions = np.arange(topology.indptr[v], topology.indptr[v + 1])
            positions = positions[types[positions] == r]
            weights = (
                np.ones(len(positions)) if topology.edge_weights is None else topology.edge_weights[positions]
            )
            source_weights = dict(zip(topology.indices[positions].tolist(), weights.tolist(), strict=True))
            columns = block.columns[sampled[block.edge_types[sampled] == r]]
            for j in columns.tolist():
                share = source_weights[int(block.sources[j])] / sum(source_weights.values())
                out[r, i, j] = len(positions) / len(columns) * share
    return out


_TARGETS = tuple(range(0, 60, 3))


def _opened(trial: Trial) -> Device:
    """Open a device that supports heterogeneous mini-batches, or skip the check."""
    device = trial.open()
    refusal = "it does not support heterogeneous graphs"
    skip_unless("hetero" in device.info.forms, refusal)
    return device


def heterogeneous_mini_batches_match_dense_float64(trial: Trial) -> None:
    """Check loss sum and gradients, including sparse embedding gradients, with and without edge weights."""
    device = _opened(trial)
    for weights in (False, True):
        graph = hetero_checks_graph(weights=weights)
        for kind in KINDS:
            model = hetero_checks_model(graph, kind)
            load_model(device, model)
            where = f"{kind}{', edge weights' if weights else ''}"
            _agree(run_step(device, hetero_batch(graph, _TARGETS)), model, graph, where)


def parts_of_a_heterogeneous_step_add_up_to_the_whole(trial: Trial) -> None:
    """Check that two parts of a step add up to the whole step, and that repeated steps are bit-equal."""
    device = _opened(trial)
    graph = hetero_checks_graph(weights=True)
    model = hetero_checks_model(graph, KINDS[0])
    load_model(device, model)
    whole = copy_result(run_step(device, hetero_batch(graph, _TARGETS)))
    parts = [
        copy_result(run_step(device, hetero_batch(graph, part))) for part in (_TARGETS[:7], _TARGETS[7:])
    ]
    total = sum(part.loss_sum for part in parts)
    close = abs(total - whole.loss_sum) <= 1e-5 * (1 + abs(whole.loss_sum))
    require(close, f"the parts' losses to add up to {whole.loss_sum:.7g}", f"their sum is {total:.7g}")
    counts = sum_counts([part.counts for part in parts])
    require(counts == dict(whole.counts), f"the parts' counts to add up to {whole.counts}", f"got {counts}")
    for number, gradient in enumerate(whole.gradients):
        difference = float((sum(part.gradients[number] for part in parts) - gradient).abs().max())
        bound = 1e-4 * float(gradient.abs().max()) + 1e-6
        require(
            difference <= bound,
            f"gradient {number} of the parts to add up",
            f"they differ by {difference:.1e}",
        )
    check_same_bits(
        run_step(device, hetero_batch(graph, _TARGETS)), whole, "in a repeated heterogeneous step"
    )


def _agree(result: StepResult, model: HeteroGNN, graph: Graph, where: str) -> None:
    reference = hetero_reference_step(model, graph, hetero_batch(graph, _TARGETS))
    close = abs(result.loss_sum - reference.loss_sum) <= 1e-5 * (1 + reference.loss_sum)
    require(close, f"the loss sum {reference.loss_sum:.7g}", f"it is {result.loss_sum:.7g} ({where})")
    rows = list(result.row_gradients)
    require(len(rows) == 1, "row gradients of one embedding table", f"got {len(rows)} ({where})")
    table = torch.zeros_like(reference.table)
    table[torch.from_numpy(np.asarray(rows[0].rows))] = rows[0].values.double()
    named = zip(
        [*reference.names, "the embedding table"],
        [*result.gradients, table],
        [*reference.gradients, reference.table],
        strict=True,
    )
    for name, gradient, exact in named:
        difference = float((gradient.double() - exact).abs().nan_to_num(torch.inf).max())
        bound = 1e-4 * float(exact.abs().max()) + 1e-6
        require(
            difference <= bound,
            f"the gradient of {name} within {bound:.1e}",
            f"the difference is {difference:.1e} ({where})",
        )


_FANOUTS = (1, 5, 64, 65, 100, 1000, -1)


def _sampler(device: Device, graph: Graph) -> HopSampler:
    sampler = device_sampler(device, graph)
    skip_unless(sampler is not None, "it does not sample")
    assert sampler is not None
    return sampler


def sample_hop_on_host(graph: Graph, vertices: NDArray[Any], fanout: int, key: np.uint64) -> Hop:
    """Return the hop that the host samples."""
    count = len(vertices)
    degrees, counts = np.empty(count, np.int32), np.empty(count, np.int32)
    count_neighbors(graph.topology.indptr, vertices, fanout, 0, count, degrees, counts)
    offsets = np.empty(count + 1, np.int32)
    prefix_sum(counts, offsets)
    neighbors = np.empty(offsets[-1], vertices.dtype)
    positions = np.empty(offsets[-1], np.int64)
    sample_neighbors(
        graph.topology.indptr, graph.topology.indices, vertices, offsets, key, 0, count, positions, neighbors
    )
    local = np.full(graph.num_vertices, -1, np.int32)
    sources = np.empty(count + len(neighbors), vertices.dtype)
    columns = np.empty(len(neighbors), np.int32)
    return Hop(
        degrees, offsets, neighbors, sources[: relabel(vertices, neighbors, local, sources, columns)], columns
    )


def _compare(actual: Hop, expected: Hop, where: str, *, relabelled: bool) -> None:
    fields = ["degrees", "offsets", "neighbors"]
    if relabelled:
        both = (actual.sources is None) == (actual.columns is None)
        require(both, f"both sources and columns, or neither, {where}", "it has only one of them")
        fields += [] if actual.sources is None else ["sources", "columns"]
    for field in fields:
        value, exact = getattr(actual, field), getattr(expected, field)
        require(value.dtype == exact.dtype, f"{field} of {exact.dtype} {where}", f"they are {value.dtype}")
        same = np.array_equal(value, exact)
        require(same, f"the same {field} as on the host, bit for bit, {where}", "they differ")


def sampler_matches_the_host(trial: Trial) -> None:
    """Check sampled edges, with fan-outs that cover every method, isolated vertices, and empty input."""
    device = trial.open_loaded()
    graph = trial.graph()
    sampler = _sampler(device, graph)
    groups = {
        "all vertices": np.random.default_rng(2).permutation(graph.num_vertices),
        "the hub": np.array([cases.HUB]),
        "vertices without neighbours": np.array(cases.ISOLATED),
        "no vertices": np.empty(0, np.int64),
    }
    for fanout in _FANOUTS:
        for name, vertices in groups.items():
            ids = vertices.astype(np.int32)
            key = stream_key(cases.SEED, SAMPLE, fanout + 1, len(ids))
            expected = sample_hop_on_host(graph, ids, fanout, key)
            for relabelled in (False, True):
                where = f"of {name} at fan-out {fanout}"
                actual = sampler.draw(ids, fanout, key, relabel=relabelled)
                _compare(actual, expected, where, relabelled=relabelled)
    sampler.close()
    sampler.close()


def mini_batches_it_sampled_are_trained(trial: Trial) -> None:
    """Check training with mini-batches that the device samples, which it may cache."""
    model: Any = trial.model()
    device = trial.open_loaded(model)
    graph, layers = trial.graph(), model.architecture.layers
    sampler = _sampler(device, graph)
    for count in (40, 1, 120):
        targets = cases.sample_targets(count)
        reference = copy_result(run_step(device, cases.sampled_batch(graph, layers, targets, cases.ROWS)))
        drawn = [cases.sampled_batch(graph, layers, targets, cases.ROWS, hops=sampler) for _ in range(3)]
        staged = [device.transfer(batch) for batch in drawn]
        for handle in staged:
            check_same_bits(device.propagate(handle), reference, "of a mini-batch that the device sampled")


def sampler_draws_while_the_device_trains(trial: Trial) -> None:
    """Check that the sample stage's thread can call the sampler during training."""
    model: Any = trial.model()
    device = trial.open_loaded(model)
    graph = trial.graph()
    sampler = _sampler(device, graph)
    ids = np.arange(graph.num_vertices, dtype=np.int32)
    key = stream_key(cases.SEED, SAMPLE, 0, 1)
    expected_hop = sample_hop_on_host(graph, ids, 5, key)
    reference = copy_result(run_step(device, trial.batch()))

    trained = threading.Event()

    def draw() -> None:
        while not trained.is_set():
            actual = sampler.draw(ids, 5, key, relabel=True)
            _compare(actual, expected_hop, "while the device trains", relabelled=True)

    def train() -> None:
        try:
            for _ in range(20):
                check_same_bits(run_step(device, trial.batch()), reference, "while it samples")
        finally:
            trained.set()

    run_concurrently(draw, train)


def the_sampler_may_outlive_the_device(trial: Trial) -> None:
    """Check that a sampler can be closed before its device, after it, or never."""
    for order in ("before", "after", "never"):
        device = trial.open_loaded()
        sampler = _sampler(device, trial.graph())
        sampler.draw(np.arange(9, dtype=np.int32), 5, np.uint64(1), relabel=False)
        if order == "before":
            sampler.close()
        device.close()
        if order == "after":
            sampler.close()
