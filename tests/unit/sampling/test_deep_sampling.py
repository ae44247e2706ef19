"""Mini-batches of many layers: their memory is bounded by the graph, and not by products of fan-outs."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import random_graph

from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler


@pytest.mark.parametrize("fanout", [2, 10])
def test_ten_layers_take_no_more_than_the_graph_allows(fanout: int) -> None:
    graph, layers = random_graph(2000, 20.0), 10
    sampler = NeighborSampler(graph, graph.split("train"), [fanout] * layers, 200, 0)
    batch = sampler.sample(0, sampler.units(0), Workers(1, "test"), in_place=False)
    num, edges = graph.num_vertices, fanout * graph.num_vertices
    assert [block.num_src for block in batch.blocks] == sorted(
        (block.num_src for block in batch.blocks), reverse=True
    )
    assert max(block.num_edges for block in batch.blocks) <= edges
    for block in batch.blocks:
        assert block.sources is not None
        assert np.array_equal(np.unique(block.sources), np.sort(block.sources))
    # Four arrays of a number a vertex and the edges' columns a layer, and for a time an edge's positions; an
    # eighth more, and pages.
    needed = layers * (4 * 4 * num + 4 * edges) + 8 * edges
    assert sampler._blocks.pool.allocated_bytes <= 1.125 * needed + (5 * layers + 1) * 2 * 4096
    batch.release()
    sampler.sample(0, sampler.units(0), Workers(1, "test"), in_place=False).release()
    assert sampler._blocks.pool.allocated_bytes <= 1.125 * needed + (5 * layers + 1) * 2 * 4096
