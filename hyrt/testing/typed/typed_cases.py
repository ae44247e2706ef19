"""A typed graph, its mini-batches, and a step over it in float64 from dense matrices."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.graph.graph import Graph
from hyrt.graph.typed.typed_graph import typed_graph
from hyrt.machine.workers import Workers
from hyrt.nn.architecture import Architecture
from hyrt.nn.typed.learned.learned_rows import tables_of
from hyrt.nn.typed.shape_of_graph import shape_of
from hyrt.nn.typed.typed_gnn import TypedGNN
from hyrt.nn.typed.typed_input import TypedInput
from hyrt.pipeline.load import Loader
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.relations.relation_sampler import RelationSampler

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
"""Kinds of models whose formulas are here."""


def typed_checks_graph(*, weights: bool) -> Graph:
    """Papers and authors with rows of their own widths, fields without; the same each time.

    With `weights`, the edges of two relations have some, and so those of the others have 1.
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
    everywhere, nowhere = np.ones(COUNTS["paper"], np.bool_), np.zeros(COUNTS["paper"], np.bool_)
    masks = {"train": everywhere, "val": nowhere, "test": nowhere}
    given = {
        triple: draw.uniform(0.3, 3, len(edges[triple][0])).astype(np.float32) for triple in RELATIONS[:2]
    }
    return typed_graph("checks", tables, edges, labels, masks, "paper", given if weights else None)


def typed_model(graph: Graph, kind: str) -> TypedGNN:
    """A model of two layers, with the same parameters each time; none is zero."""
    shape = shape_of(graph)
    made = TypedGNN(
        Architecture(kind=kind, in_features=HIDDEN, hidden=HIDDEN, num_classes=CLASSES, shape=shape)
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in (*made.parameters(), *(table.values for table in tables_of(made))):
            values.copy_(torch.randn(values.shape, generator=generator) * 0.3)
    return made


def typed_batch(graph: Graph, targets: Sequence[int]) -> MiniBatch:
    """A loaded mini-batch around some papers."""
    assert graph.types is not None
    fanouts = [[fanout] * len(graph.types.relations) for fanout in FANOUTS]
    sampler = RelationSampler(graph, graph.split("train"), fanouts, 64, SEED)
    with Workers(1, "hyrt.testing") as alone:
        batch = sampler.sample(2, np.array(targets, np.int32), alone, in_place=False)
        assert batch.blocks[0].sources is not None
        batch.inputs = Loader(graph.features).typed_rows(batch.blocks[0].sources, alone)
    return batch


@dataclass(frozen=True, slots=True)
class ExpectedTyped:
    """What a device should return for a typed mini-batch, in float64."""

    loss_sum: float
    """Sum of the losses."""
    gradients: list[Tensor]
    """One tensor a parameter."""
    names: list[str]
    """The names of the parameters."""
    table: Tensor
    """[rows, hidden] the gradient of the learned table."""


def expected_typed_step(model: TypedGNN, graph: Graph, batch: MiniBatch) -> ExpectedTyped:
    """One step of a model that this module knows, by the formulas of its kind.

    R-GCN (Schlichtkrull et al., 2018) adds up W_r times the mean of each relation's rows, and W_0 times the
    own row; R-GraphSAGE has a matrix a type in its place. Of k of d edges that were drawn, with weights w of
    which all d have the sum D, each counts d / k times w / D.
    """
    twin = copy.deepcopy(model).double()
    p: dict[str, Tensor] = dict(twin.named_parameters())
    (table,) = tables_of(model)
    learned = table.values.detach().double().requires_grad_()
    x = _input_rows(p, learned, batch)
    for i, block in enumerate(batch.blocks):
        own = x[: block.num_dst]
        if model.architecture.kind == "rgcn":
            total = own @ p[f"layers.{i}.own"].T
        else:
            types = _types(block.destinations)
            total = torch.stack([p[f"layers.{i}.own"][t] @ row for t, row in zip(types, own, strict=True)])
        for mean, weight in zip(_means(graph, block), p[f"layers.{i}.weight"], strict=True):
            total = total + mean @ x @ weight.T
        x = total + p[f"layers.{i}.bias"]
        x = x if i else x.relu()
    labels = torch.from_numpy(batch.labels.astype(np.int64))
    loss = torch.nn.functional.cross_entropy(x, labels, reduction="sum")
    found = torch.autograd.grad(loss, [*p.values(), learned])
    return ExpectedTyped(float(loss.detach()), list(found[:-1]), list(p), found[-1])


def _types(vertices: NDArray[Any]) -> list[int]:
    ends = np.cumsum(list(COUNTS.values())).tolist()
    return [next(t for t, end in enumerate(ends) if v < end) for v in vertices.tolist()]


def _input_rows(p: dict[str, Tensor], learned: Tensor, batch: MiniBatch) -> Tensor:
    """[num_src, hidden] what the maps of the types, or the table, give each source."""
    given, sources = batch.inputs, batch.blocks[0].sources
    assert isinstance(given, TypedInput)
    assert sources is not None
    following, rows = [0] * len(COUNTS), []
    for t in _types(sources):
        at = following[t]
        following[t] += 1
        matrix, numbers = given.matrices[t], given.tables[t]
        if matrix is None:
            assert numbers is not None
            rows.append(learned[int(numbers[at])])
        else:
            rows.append(p[f"input.maps.{t}.weight"] @ matrix[at].double() + p[f"input.maps.{t}.bias"])
    return torch.stack(rows)


def _means(graph: Graph, block: Block) -> Tensor:
    """[R, num_dst, num_src] what the row of a source counts in the mean of a relation."""
    topology, types = graph.topology, graph.topology.edge_types
    assert types is not None
    assert block.edge_types is not None
    assert block.sources is not None
    out = torch.zeros(len(RELATIONS), block.num_dst, block.num_src, dtype=torch.float64)
    for i, v in enumerate(block.destinations.tolist()):
        drawn = np.arange(block.indptr[i], block.indptr[i + 1])
        for r in range(len(RELATIONS)):
            there = np.arange(topology.indptr[v], topology.indptr[v + 1])
            there = there[types[there] == r]
            weights = np.ones(len(there)) if topology.edge_weights is None else topology.edge_weights[there]
            of_source = dict(zip(topology.indices[there].tolist(), weights.tolist(), strict=True))
            columns = block.columns[drawn[block.edge_types[drawn] == r]]
            for j in columns.tolist():
                share = of_source[int(block.sources[j])] / sum(of_source.values())
                out[r, i, j] = len(there) / len(columns) * share
    return out
