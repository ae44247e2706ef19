"""Small heterogeneous graphs, and dense references for what is computed on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.nn.architecture import GraphMetadata
from hyrt.nn.hetero.hetero_gnn import get_graph_metadata
from hyrt.pipeline.load import Loader
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import RelationSampler

COUNTS = {"paper": 120, "author": 70, "venue": 15}
WIDTHS = {"paper": 9, "author": 5, "venue": None}
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("paper", "appears_in", "venue"),
    ("venue", "prints", "paper"),
)


WEIGHTED = RELATIONS[:3]
"""Relations whose edges have weights, where some have."""


def small_typed(
    seed: int = 0, classes: int = 4, edges: int = 500, learned: bool = True, weights: bool = False
) -> Graph:
    """Papers, authors and venues; venues have no features unless `learned` is false.

    With `weights`, edges of some relations have some.
    """
    draw = np.random.default_rng(seed)
    tables: dict[str, Any] = {
        name: count
        if (width := WIDTHS[name]) is None and learned
        else draw.standard_normal((count, width or 3)).astype(np.float32)
        for name, count in COUNTS.items()
    }
    relations = {}
    for source, name, destination in RELATIONS:
        num = COUNTS[source] * COUNTS[destination]
        pairs = draw.choice(num, min(edges, num // 4), replace=False)
        relations[source, name, destination] = divmod(pairs, COUNTS[destination])
    place = draw.permutation(COUNTS["paper"])
    masks = {
        name: np.isin(np.arange(COUNTS["paper"]), place[start:stop])
        for name, start, stop in (("train", 0, 60), ("val", 60, 90), ("test", 90, 120))
    }
    labels = draw.integers(0, classes, COUNTS["paper"])
    labels[:classes] = np.arange(classes)
    given = {
        triple: draw.uniform(0.2, 3, len(relations[triple][0])).astype(np.float32) for triple in WEIGHTED
    }
    return build_hetero_graph("small", tables, relations, labels, masks, "paper", given if weights else None)


def shape_of_small(graph: Graph) -> GraphMetadata:
    shape = get_graph_metadata(graph)
    assert shape is not None
    return shape


def small_batch(graph: Graph, fanouts: Sequence[int], targets: int = 20, step: int = 0) -> MiniBatch:
    """A loaded mini-batch."""
    assert graph.types is not None
    num = len(graph.types.relations)
    sampler = RelationSampler(graph, graph.split("train"), [[f] * num for f in fanouts], targets, 3)
    with Workers(1, "test") as workers:
        batch = sampler.sample(step, sampler.units(step), workers, in_place=False)
        assert batch.blocks[0].sources is not None
        batch.inputs = Loader(graph.features).hetero_rows(batch.blocks[0].sources, workers)
    return batch


def dense_relations(block: Block, num_relations: int) -> torch.Tensor:
    """[R, num_dst, num_src] float64: how many edges of each relation there are between two rows."""
    out = torch.zeros(num_relations, block.num_dst, block.num_src, dtype=torch.float64)
    assert block.edge_types is not None
    for i in range(block.num_dst):
        for e in range(block.indptr[i], block.indptr[i + 1]):
            out[int(block.edge_types[e]), i, int(block.columns[e])] += 1
    return out


def dense_means(graph: Graph, block: Block) -> torch.Tensor:
    """[R, num_dst, num_src] float64: what the row of a source counts in the mean of a relation.

    A drawn edge of weight w counts d / k times w / D: k of d edges were drawn, of weights that add up to D.
    """
    assert graph.types is not None
    topology, types = graph.topology, graph.topology.edge_types
    assert types is not None
    assert block.sources is not None
    out = torch.zeros(len(graph.types.relations), block.num_dst, block.num_src, dtype=torch.float64)
    for i, v in enumerate(block.destinations.tolist()):
        into = range(topology.indptr[v], topology.indptr[v + 1])
        drawn = range(block.indptr[i], block.indptr[i + 1])
        assert block.edge_types is not None
        for r in set(block.edge_types[list(drawn)].tolist()):
            weights = {
                int(topology.indices[e]): 1.0
                if topology.edge_weights is None
                else float(topology.edge_weights[e])
                for e in into
                if types[e] == r
            }
            sources = [int(block.columns[e]) for e in drawn if block.edge_types[e] == r]
            for j in sources:
                weight = weights[int(block.sources[j])] / sum(weights.values())
                out[r, i, j] += len(weights) / len(sources) * weight
    return out


def types_of(shape: GraphMetadata, ids: Any) -> list[int]:
    """The type of each vertex, found by looking through all of them."""
    ends = np.cumsum(shape.counts).tolist()
    return [next(t for t, end in enumerate(ends) if v < end) for v in np.asarray(ids).tolist()]
