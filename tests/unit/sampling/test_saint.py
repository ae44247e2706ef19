from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference_draws as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_graphs import assert_equal_blocks, graph_of, graphs, memory_ranges, random_graph, row

from hyrt.graph.graph import Graph
from hyrt.runtime.rng import PRESAMPLE, WALK
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.saint_sampler import SaintSampler

ALONE = Workers(1, "test")


def walked(
    graph: Graph, targets: Sequence[int], roots: int, length: int, seed: int, purpose: int, unit: int
) -> list[int]:
    """Vertices that one subgraph's walks meet, walk by walk, in plain Python."""
    key = reference.stream_key(seed, purpose, unit, 0)
    met = []
    for root in range(roots):
        v = targets[reference.below(reference.draw(key, root, 0), len(targets))]
        met.append(int(v))
        for k in range(1, length + 1):
            neighbors = row(graph, v)
            if neighbors:
                v = neighbors[reference.below(reference.draw(key, root, k), len(neighbors))]
            met.append(v)
    return met


def rows_of(batch: MiniBatch, layer: int) -> dict[int, tuple[int, list[tuple[int, float]]]]:
    """By row: the destination, and the rows and weights of its sources."""
    block = batch.blocks[layer]
    assert block.weights is not None
    return {
        i: (
            int(block.destinations[i]),
            [
                (int(block.columns[e]), float(block.weights[e]))
                for e in range(block.indptr[i], block.indptr[i + 1])
            ],
        )
        for i in range(block.num_dst)
    }


@settings(max_examples=40, deadline=None)
@given(
    graphs(max_vertices=40),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2**40),
    st.randoms(),
)
def test_units_against_brute_force(
    graph: Graph, roots: int, length: int, layers: int, seed: int, random: Any
) -> None:
    everyone = range(graph.num_vertices)
    targets = sorted(random.sample(everyone, random.randint(1, graph.num_vertices)))
    sampler = SaintSampler(graph, np.array(targets), layers, roots, length, 3, seed, coverage=2)
    units = sampler.units(5)
    np.testing.assert_array_equal(units, [15, 16, 17])
    batch = sampler.sample(5, units, ALONE)

    # The counts of both normalisations, over the pre-sampled subgraphs.
    pre = [
        set(walked(graph, targets, roots, length, seed, PRESAMPLE, n)) for n in range(sampler.num_presampled)
    ]
    in_subgraph = {v: sum(v in subgraph for subgraph in pre) for v in everyone}

    met = [walked(graph, targets, roots, length, seed, WALK, int(unit)) for unit in units]
    first = [list(dict.fromkeys(v for v in unit if v in targets)) for unit in met]
    rest = [list(dict.fromkeys(v for v in unit if v not in targets)) for unit in met]
    vertices = [v for part in (*first, *rest) for v in part]
    owner = [unit for parts in (first, rest) for unit in range(3) for _ in parts[unit]]
    number = {(unit, v): i for i, (unit, v) in enumerate(zip(owner, vertices, strict=True))}
    num_targets = sum(len(part) for part in first)

    assert [block.layer for block in batch.blocks] == list(range(1, layers + 1))
    for layer, block in enumerate(batch.blocks):
        last = layer == layers - 1
        assert block.num_dst == (num_targets if last else len(vertices))
        np.testing.assert_array_equal(block.sources, vertices)
        np.testing.assert_array_equal(block.destinations, vertices[: block.num_dst])
        np.testing.assert_array_equal(block.source_degrees, [len(row(graph, v)) for v in vertices])
        np.testing.assert_array_equal(block.degrees, block.source_degrees[: block.num_dst])
        assert (block.num_src, block.step, block.seed) == (len(vertices), 5, seed)
        for i, (v, edges) in rows_of(batch, layer).items():
            expected = []
            for u in row(graph, v):
                if (owner[i], u) in number:
                    both = sum(u in subgraph and v in subgraph for subgraph in pre)
                    expected.append((number[owner[i], u], np.float32((in_subgraph[v] + 1) / (both + 1))))
            assert edges == expected
    np.testing.assert_array_equal(batch.targets, vertices[:num_targets])
    np.testing.assert_array_equal(batch.labels, graph.labels[batch.targets])
    assert batch.target_weights is not None
    loss_weights = [(len(pre) + 1) / (in_subgraph[v] + 1) / len(targets) for v in vertices[:num_targets]]
    np.testing.assert_allclose(batch.target_weights, loss_weights, rtol=1e-6)
    assert (batch.normalizer, batch.step) == (3.0, 5)
    np.testing.assert_array_equal(sampler._local, -1)


def small_sampler(units: int = 4, layers: int = 2, **options: Any) -> SaintSampler:
    graph = random_graph(400, 8, seed=1)
    return SaintSampler(graph, np.arange(0, 400, 2), layers, 20, 2, units, 7, **options)


@pytest.mark.parametrize("in_place", [False, True])
def test_any_split_moves_whole_units_unchanged(in_place: bool) -> None:
    sampler = small_sampler(layers=3)
    units = sampler.units(2)
    together = sampler.sample(2, units, ALONE, in_place=in_place)
    for cuts in ([1], [2], [1, 2, 3], [3]):
        pieces = [sampler.sample(2, piece, ALONE, in_place=in_place) for piece in np.split(units, cuts)]
        assert sum(piece.normalizer for piece in pieces) == together.normalizer
        assert sum(piece.num_edges for piece in pieces) == together.num_edges
        # Targets of all units come first, in their order; so do their losses' weights.
        np.testing.assert_array_equal(np.concatenate([piece.targets for piece in pieces]), together.targets)
        np.testing.assert_array_equal(
            np.concatenate([piece.target_weights for piece in pieces]), together.target_weights
        )
        for layer in range(3):
            whole = vertex_edges(together.blocks[layer])
            parts = [edge for piece in pieces for edge in vertex_edges(piece.blocks[layer])]
            assert sorted(parts) == sorted(whole)
    # The last block has the targets' rows only, so there it is the order too.
    parts = [edge for piece in pieces for edge in vertex_edges(piece.blocks[-1])]
    assert parts == vertex_edges(together.blocks[-1])


def vertex_edges(block: Block) -> list[tuple[int, list[tuple[int, float]]]]:
    """Each destination with its sources, as vertices of the graph, and weights."""
    assert block.weights is not None
    vertices = block.columns if block.sources is None else block.sources[block.columns]
    return [
        (
            int(block.destinations[i]),
            [
                (int(vertices[e]), float(block.weights[e]))
                for e in range(block.indptr[i], block.indptr[i + 1])
            ],
        )
        for i in range(block.num_dst)
    ]


@pytest.mark.parametrize("in_place", [False, True])
def test_content_is_equal_for_any_number_of_threads(in_place: bool) -> None:
    graph = random_graph(6000, 12, seed=1)
    targets = np.arange(0, 6000, 3)
    batches = []
    for threads in (1, 2, 4):
        workers = Workers(threads, "test")
        sampler = SaintSampler(graph, targets, 2, 2500, 2, 2, seed=3, coverage=3, workers=workers)
        batches.append(sampler.sample(1, sampler.units(1), workers, in_place=in_place))
        workers.close()
    for other in batches[1:]:
        np.testing.assert_array_equal(other.target_weights, batches[0].target_weights)
        for mine, theirs in zip(batches[0].blocks, other.blocks, strict=True):
            assert_equal_blocks(mine, theirs)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_in_place_equals_relabelled(layers: int) -> None:
    sampler = small_sampler(layers=layers)
    relabelled = sampler.sample(1, sampler.units(1), ALONE)
    in_place = sampler.sample(1, sampler.units(1), ALONE, in_place=True)
    first, mine = relabelled.blocks[0], in_place.blocks[0]
    assert mine.in_place
    assert mine.num_src == 400
    assert vertex_edges(mine) == vertex_edges(first)
    np.testing.assert_array_equal(mine.degrees, first.degrees)
    np.testing.assert_array_equal(mine.source_degrees, sampler._batches.graph.topology.in_degrees)
    for a, b in zip(relabelled.blocks[1:], in_place.blocks[1:], strict=True):
        assert_equal_blocks(a, b)


def test_64_bit_vertices_sample_the_same() -> None:
    narrow, wide = random_graph(300, 6, 2), random_graph(300, 6, 2, ids=np.int64)
    a, b = (SaintSampler(graph, np.arange(300), 2, 10, 3, 2, 0, coverage=2) for graph in (narrow, wide))
    b.ids = np.int64  # type: ignore[assignment]
    for in_place in (False, True):
        one, other = (s.sample(1, s.units(1), ALONE, in_place=in_place) for s in (a, b))
        assert other.targets.dtype == np.int64
        for mine, theirs in zip(one.blocks, other.blocks, strict=True):
            assert vertex_edges(mine) == vertex_edges(theirs)


def test_no_unit_is_sampled_twice_over_the_steps() -> None:
    sampler = small_sampler(units=3)
    numbers = np.concatenate([sampler.units(step) for step in range(10)])
    np.testing.assert_array_equal(numbers, np.arange(30))
    subgraphs = {tuple(sampler.sample(0, np.array([n]), ALONE).targets) for n in numbers}
    assert len(subgraphs) == 30


@pytest.mark.parametrize(
    ("targets", "roots", "length", "units", "steps"),
    [(200, 20, 2, 1, 5), (200, 20, 2, 4, 2), (10, 50, 4, 1, 1)],
)
def test_steps_per_epoch_counts_the_walks_steps(
    targets: int, roots: int, length: int, units: int, steps: int
) -> None:
    graph = random_graph(400, 5, seed=1)
    sampler = SaintSampler(graph, np.arange(targets), 2, roots, length, units, 0, coverage=1)
    assert sampler.steps_per_epoch() == steps


def test_presampling_covers_the_targets_and_depends_on_the_seed_only() -> None:
    one, same, more = small_sampler(coverage=20), small_sampler(coverage=20), small_sampler(coverage=90)
    assert one.num_presampled == same.num_presampled < more.num_presampled
    np.testing.assert_array_equal(one._edge_counts, same._edge_counts)
    targets = np.arange(0, 400, 2)
    assert one._vertex_counts[targets].mean() >= 20
    assert more._vertex_counts[targets].mean() >= 90


def test_class_weights_multiply_the_loss_weights() -> None:
    weights = np.array([0.5, 2.0, 7.0], np.float32)
    plain, weighted = small_sampler(), small_sampler(class_weights=weights)
    a, b = (s.sample(0, s.units(0), ALONE) for s in (plain, weighted))
    assert a.target_weights is not None
    assert b.target_weights is not None
    assert b.target_weights.dtype == np.float32
    np.testing.assert_allclose(b.target_weights, a.target_weights * weights[a.labels], rtol=1e-6)


def test_vertices_without_neighbours_and_without_edges() -> None:
    graph = graph_of([[], [0], []])
    sampler = SaintSampler(graph, np.array([2]), 2, 3, 2, 1, 0)
    batch = sampler.sample(0, sampler.units(0), ALONE)
    assert batch.num_edges == 0
    np.testing.assert_array_equal(batch.targets, [2])
    assert batch.target_weights is not None
    np.testing.assert_allclose(batch.target_weights, [1.0])


@pytest.mark.parametrize("name", ["layers", "roots", "walk_length", "units_per_step", "coverage"])
def test_counts_below_one_are_refused(name: str) -> None:
    counts = {"layers": 1, "roots": 1, "walk_length": 1, "units_per_step": 1, "coverage": 1, name: 0}
    with pytest.raises(ValueError, match=name):
        SaintSampler(graph_of([[0]]), np.array([0]), seed=0, **counts)


def test_no_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="targets is empty"):
        SaintSampler(graph_of([[0]]), np.array([], np.int64), 1, 1, 1, 1, 0)


def test_mini_batches_in_flight_never_share_memory() -> None:
    sampler = small_sampler()
    for _ in range(4):
        live = [sampler.sample(step, sampler.units(step), ALONE, in_place=step == 1) for step in range(3)]
        spans = [memory_ranges(batch.blocks, [sampler._batches.graph.topology.in_degrees]) for batch in live]
        for i in range(3):
            for j in range(i):
                assert not any(a < d and c < b for a, b in spans[i] for c, d in spans[j])
        alone = small_sampler().sample(0, sampler.units(0), ALONE)
        for a, b in zip(live[0].blocks, alone.blocks, strict=True):
            assert_equal_blocks(a, b)
        allocated = sampler._pool.allocated_bytes
        for batch in live:
            batch.release()
            batch.release()
    live = [sampler.sample(step, sampler.units(step), ALONE, in_place=step == 1) for step in range(3)]
    assert sampler._pool.allocated_bytes == allocated


def test_walks_are_uniform() -> None:
    # Five targets point at 9 others each, which nothing points at.
    graph = graph_of([range(5, 14)] * 5 + [[]] * 9)
    sampler = SaintSampler(graph, np.arange(5), 1, 20_000, 2, 1, 3, coverage=1)
    visited = sampler._walk(WALK, 0, ALONE).reshape(-1, 3)
    pairs = np.zeros((5, 9))
    np.add.at(pairs, (visited[:, 0], visited[:, 1] - 5), 1)
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3
    np.testing.assert_array_equal(visited[:, 2], visited[:, 1])
