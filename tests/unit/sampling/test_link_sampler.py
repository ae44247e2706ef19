"""Mini-batches of links: the same pairs and edges for every split, without the edges of the step's links."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import adjacency, dense_weights, random_graph, with_values

from hyrt.graph.links.edges import list_links
from hyrt.graph.links.link_split import LinkEndpoints
from hyrt.runtime.workers import Workers
from hyrt.sampling.link_sampler import LinkSampler, NegativeKind, NegativeSampler
from hyrt.sampling.neighbor_sampler import NeighborSampler

ALONE = Workers(1, "test")
GRAPH = random_graph(120, 9, seed=1)
DIRECTED = random_graph(120, 9, seed=1, symmetric=False)
EDGES = adjacency(GRAPH)
LINKS = list_links(GRAPH.topology)[0]


def sampler_of(
    graph=GRAPH,
    fanouts=(3, 4),
    kind: NegativeKind = "uniform",
    exclude: str = "both",
    num: int = 2,
    **options,
) -> LinkSampler:
    links = list_links(graph.topology)[0]
    around = NeighborSampler(graph, np.arange(120, dtype=np.int32), list(fanouts), 40, 7, **options)
    given = LINKS[:5][:, ::-1] if kind == "given" else None
    negatives = NegativeSampler(kind, num, 7, graph.topology, LinkEndpoints.all_vertices(120), given)
    return LinkSampler(links, around, negatives, graph.topology, exclude, 40, 7)


@pytest.mark.parametrize("kind", ["uniform", "degree", "batch", "given"])
def test_the_pairs_of_a_link_do_not_depend_on_the_split(kind: NegativeKind) -> None:
    whole, parts = sampler_of(kind=kind), sampler_of(kind=kind)
    units = whole.units(5)
    batch = whole.sample(5, units, ALONE, in_place=False)
    pairs = batch.targets[batch.labels]
    assert batch.normalizer == batch.num_losses == 40
    assert (pairs[:, 0] == LINKS[units]).all()
    assert len(np.unique(batch.targets)) == len(batch.targets)
    edges_of = {}
    for block in batch.blocks:
        for i, v in enumerate(block.destinations):
            found = block.columns[block.indptr[i] : block.indptr[i + 1]]
            edges_of[block.layer, int(v)] = sorted(block.sources[found].tolist())
    for part in (units[25:], units[:25]):
        # Another step in between, as where a share is done again.
        parts.sample(6, parts.units(6)[:3], ALONE, in_place=False)
        piece = parts.sample(5, part, ALONE, in_place=False)
        at = [int(np.flatnonzero(units == unit)[0]) for unit in part]
        assert (piece.targets[piece.labels] == pairs[at]).all()
        for block in piece.blocks:
            for i, v in enumerate(block.destinations):
                found = block.columns[block.indptr[i] : block.indptr[i + 1]]
                assert sorted(block.sources[found].tolist()) == edges_of[block.layer, int(v)]
    others = pairs[:, 1:]
    if kind == "given":
        assert all([v, u] in LINKS[:5].tolist() for u, v in others.reshape(-1, 2))
        return
    kept = (others == pairs[:, :1]).sum(axis=2)
    assert (kept >= 1).all()
    assert not EDGES[others[..., 1], others[..., 0]].any()
    # Sources and destinations are replaced alike.
    assert 20 < (others[..., 0] == pairs[:, :1, 0]).sum() < 60
    if kind == "batch":
        ends = LINKS[units]
        assert np.isin(others[..., 0], ends[:, 0]).all()
        assert np.isin(others[..., 1], ends[:, 1]).all()


def test_negatives_by_degree_come_as_often_as_edges_do() -> None:
    negatives = NegativeSampler("degree", 400, 1, GRAPH.topology, LinkEndpoints.all_vertices(120))
    pairs = negatives.sample(0, np.arange(100), LINKS[:100], LINKS[:100])
    drawn = np.where(pairs[..., 0] == LINKS[:100, None, 0], pairs[..., 1], pairs[..., 0])
    counts, degrees = np.bincount(drawn.ravel(), minlength=120), EDGES.sum(1)
    assert not counts[degrees == 0].any()
    expected = degrees / degrees.sum() * counts.sum()
    assert np.abs(counts - expected).max() < 0.25 * expected.max()


@pytest.mark.parametrize("exclude", ["both", "edges", "none"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("most", [-1, 4])
def test_blocks_are_those_of_the_graph_without_the_edges_of_the_step(
    exclude: str, in_place: bool, most: int
) -> None:
    sampler = sampler_of(DIRECTED, (most, -1), exclude=exclude, sampled_degrees=True)
    units = sampler.units(3)
    left = adjacency(DIRECTED)
    u, v = list_links(DIRECTED.topology)[0][units].T
    before = left.sum()
    if exclude != "none":
        left[v, u] = 0
    if exclude == "both":
        left[u, v] = 0
    assert (left.sum() < before) == (exclude != "none")
    # A trainer's part of the step, without the edges of all of it.
    batch = sampler.sample(3, units[:9], ALONE, in_place=in_place)
    for block in batch.blocks:
        sources = np.arange(120) if block.sources is None else block.sources
        limit = most if block.layer == 2 and most > 0 else 120
        degrees = np.minimum(left.sum(1), limit)
        assert (block.degrees == degrees[block.destinations]).all()
        assert (block.source_degrees == degrees[sources]).all()
        if in_place and block.layer == 1:
            assert block.source_scale is not None
            assert block.source_scale() == pytest.approx(1 / np.sqrt(degrees + 1))
        for i, vertex in enumerate(block.destinations):
            found = sources[block.columns[block.indptr[i] : block.indptr[i + 1]]]
            assert left[vertex, found].all()
            if limit == 120:
                assert sorted(found) == np.flatnonzero(left[vertex]).tolist()
    # The next mini-batch of vertices alone has all edges again.


@pytest.mark.parametrize("in_place", [False, True])
def test_weights_are_those_of_the_edges_that_are_left(in_place: bool) -> None:
    graph = with_values(DIRECTED, columns=2)
    sampler = sampler_of(graph, (-1, -1), exclude="edges")
    units = sampler.units(3)
    left = dense_weights(graph)
    u, v = list_links(graph.topology)[0][units].T
    left[v, u] = 0
    for block in sampler.sample(3, units, ALONE, in_place=in_place).blocks:
        sources = np.arange(graph.num_vertices) if block.sources is None else block.sources
        columns = block.columns if block.sources is None else block.sources[block.columns]
        rows = np.repeat(block.destinations, np.diff(block.indptr))
        assert block.edge_features is not None
        assert len(block.edge_features) == block.num_edges == (left[block.destinations] > 0).sum()
        np.testing.assert_array_equal(block.edge_weights, left[rows, columns].astype(np.float32))
        np.testing.assert_allclose(block.weighted_degrees, left.sum(1)[block.destinations], rtol=1e-6)
        np.testing.assert_allclose(block.source_weighted_degrees, left.sum(1)[sources], rtol=1e-6)
        if block.source_scale is not None:
            np.testing.assert_allclose(block.source_scale(), 1 / np.sqrt(left.sum(1) + 1), rtol=1e-6)


def test_a_pair_drawn_again_is_not_that_of_another_negative() -> None:
    """On a dense graph half of the draws are edges, and drawn again: draws of a link never share a number."""
    graph = random_graph(120, 60, seed=2)
    links = list_links(graph.topology)[0][:100]
    negatives = NegativeSampler("uniform", 40, 1, graph.topology, LinkEndpoints.all_vertices(120))
    pairs = negatives.sample(0, np.arange(100), links, links)
    for apart in (1, 2, 20):
        equal = (pairs[:, apart:] == pairs[:, :-apart]).all(axis=2).mean()
        # One of two ends is replaced, by one of at least 40 vertices.
        assert equal < 1 / 40
