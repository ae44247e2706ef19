from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import (
    assert_equal_blocks,
    graph_of,
    graphs,
    memory_ranges,
    random_graph,
    row,
    sampled_rows,
)

from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler

ALONE = Workers(1, "test")

# Both sides of the fan-out at which the algorithm changes (64), and all neighbours.
fanouts = st.lists(st.sampled_from([1, 2, 5, 63, 64, 65, 100, -1]), min_size=1, max_size=3)


def sampler_of(graph: Graph, fanout: Sequence[int], batch_size: int, seed: int = 0) -> NeighborSampler:
    return NeighborSampler(graph, np.arange(graph.num_vertices), fanout, batch_size, seed)


def check_block(graph: Graph, block: Block, fanout: int) -> None:
    sources, columns = block.sources, block.columns
    assert sources is not None
    assert block.num_src == len(sources)
    assert columns.dtype == block.indptr.dtype == np.int32
    # Destinations are the prefix of sources; each vertex has one number.
    np.testing.assert_array_equal(sources[: block.num_dst], block.destinations)
    assert len(np.unique(sources)) == len(sources)
    # Every further source is there because an edge reads it, and numbered in the order of the edges.
    new = columns[columns >= block.num_dst]
    first_seen = list(dict.fromkeys(int(j) for j in new))
    assert first_seen == list(range(block.num_dst, block.num_src))
    full = [row(graph, int(v)) for v in range(graph.num_vertices)]
    for vertex, neighbors in zip(block.destinations, sampled_rows(block), strict=True):
        everyone = full[int(vertex)]
        assert len(neighbors) == (len(everyone) if fanout < 0 else min(len(everyone), fanout))
        assert len(set(neighbors)) == len(neighbors)
        assert set(neighbors) <= set(everyone)
        if len(neighbors) == len(everyone):
            assert neighbors == everyone
    degrees = np.array([len(neighbors) for neighbors in full], np.int32)
    np.testing.assert_array_equal(block.degrees, degrees[block.destinations])
    np.testing.assert_array_equal(block.source_degrees, degrees[sources])


@settings(max_examples=60, deadline=None)
@given(graphs(), fanouts, st.integers(1, 40), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_blocks_against_brute_force(
    graph: Graph, fanout: list[int], batch_size: int, seed: int, step: int
) -> None:
    sampler = sampler_of(graph, fanout, batch_size, seed)
    units = sampler.units(step)
    batch = sampler.sample(step, units, ALONE, in_place=False)
    assert [block.layer for block in batch.blocks] == list(range(1, len(fanout) + 1))
    np.testing.assert_array_equal(batch.blocks[-1].destinations, units)
    np.testing.assert_array_equal(batch.targets, units)
    np.testing.assert_array_equal(batch.labels, graph.labels[units])
    assert batch.labels.dtype == np.int64
    assert (batch.normalizer, batch.target_weights, batch.step) == (len(units), None, step)
    assert batch.num_edges == sum(len(r) for block in batch.blocks for r in sampled_rows(block))
    for block, size in zip(batch.blocks, reversed(fanout), strict=True):
        assert (block.step, block.seed, block.weights) == (step, seed, None)
        check_block(graph, block, size)
    for inner, outer in zip(batch.blocks, batch.blocks[1:], strict=False):
        np.testing.assert_array_equal(inner.destinations, outer.sources)
    np.testing.assert_array_equal(sampler._blocks.local, -1)


@settings(max_examples=40, deadline=None)
@given(graphs(), fanouts, st.data())
def test_any_split_of_the_targets_samples_the_same(
    graph: Graph, fanout: list[int], data: st.DataObject
) -> None:
    sampler = sampler_of(graph, fanout, graph.num_vertices)
    units = sampler.units(3)
    whole = sampler.sample(3, units, ALONE, in_place=False)
    cuts = data.draw(st.lists(st.integers(0, len(units)), max_size=3).map(sorted))
    pieces = [
        sampler.sample(3, piece, ALONE, in_place=False) for piece in np.split(units, cuts) if len(piece)
    ]
    assert sum(piece.normalizer for piece in pieces) == whole.normalizer
    for layer in range(len(fanout)):
        expected = rows_by_vertex([whole.blocks[layer]])
        assert rows_by_vertex([piece.blocks[layer] for piece in pieces]) == expected


def rows_by_vertex(blocks: Sequence[Block]) -> dict[int, list[int]]:
    """Sampled neighbours, in order, of every destination; equal wherever one is in several blocks."""
    rows: dict[int, list[int]] = {}
    for block in blocks:
        for vertex, neighbors in zip(block.destinations, sampled_rows(block), strict=True):
            assert rows.setdefault(int(vertex), neighbors) == neighbors
    return rows


@pytest.mark.parametrize("in_place", [False, True])
def test_content_is_equal_for_any_number_of_threads(in_place: bool) -> None:
    graph = random_graph(6000, 12, seed=1)
    batches: list[MiniBatch] = []
    for threads in (1, 2, 4):
        workers = Workers(threads, "test")
        sampler = sampler_of(graph, [70, 5, 3], 4500, seed=9)
        batches.append(sampler.sample(1, sampler.units(1), workers, in_place=in_place))
        workers.close()
    for other in batches[1:]:
        for mine, theirs in zip(batches[0].blocks, other.blocks, strict=True):
            assert_equal_blocks(mine, theirs)


def test_an_edge_does_not_depend_on_the_layers_beside_it() -> None:
    # The same layer of a model with other fan-outs above it draws the same neighbours.
    graph = random_graph(300, 20, seed=2)
    first = sampler_of(graph, [4, 3], 300)
    second = sampler_of(graph, [9, 3], 300)
    units = first.units(0)
    small = rows_by_vertex([first.sample(0, units, ALONE, in_place=False).blocks[0]])
    large = rows_by_vertex([second.sample(0, units, ALONE, in_place=False).blocks[0]])
    assert small == large


def test_steps_layers_and_seeds_draw_differently() -> None:
    graph = random_graph(300, 30, seed=3)
    units = np.arange(300, dtype=np.int32)

    def edges(seed: int, step: int, layer: int) -> list[list[int]]:
        batch = sampler_of(graph, [3, 3], 300, seed).sample(step, units, ALONE, in_place=False)
        return sampled_rows(batch.blocks[layer])[:300]

    base = edges(0, 0, 1)
    assert edges(0, 0, 1) == base
    assert base not in (edges(1, 0, 1), edges(0, 1, 1), edges(0, 0, 0))


@settings(max_examples=40, deadline=None)
@given(graphs(), fanouts, st.integers(1, 40))
def test_in_place_equals_relabelled(graph: Graph, fanout: list[int], batch_size: int) -> None:
    sampler = sampler_of(graph, fanout, batch_size, seed=5)
    units = sampler.units(2)
    relabelled = sampler.sample(2, units, ALONE, in_place=False)
    in_place = sampler.sample(2, units, ALONE, in_place=True)
    first, mine = relabelled.blocks[0], in_place.blocks[0]
    assert mine.in_place
    assert not first.in_place
    assert first.sources is not None
    np.testing.assert_array_equal(mine.columns, first.sources[first.columns])
    np.testing.assert_array_equal(mine.indptr, first.indptr)
    np.testing.assert_array_equal(mine.destinations, first.destinations)
    np.testing.assert_array_equal(mine.degrees, first.degrees)
    assert mine.num_src == graph.num_vertices
    np.testing.assert_array_equal(mine.source_degrees, graph.topology.in_degrees)
    for a, b in zip(relabelled.blocks[1:], in_place.blocks[1:], strict=True):
        assert_equal_blocks(a, b)
    assert relabelled.num_edges == in_place.num_edges


def test_an_epoch_visits_every_target_once_in_an_order_of_its_own() -> None:
    graph = random_graph(103, 4, seed=4)
    targets = np.arange(0, 103, 2)
    epochs = []
    for epoch in range(3):
        sampler = NeighborSampler(graph, targets, [3], 10, seed=1)
        assert sampler.steps_per_epoch() == 6
        batches = [sampler.units(6 * epoch + step) for step in range(6)]
        assert [len(batch) for batch in batches] == [10, 10, 10, 10, 10, 2]
        epochs.append(np.concatenate(batches))
        np.testing.assert_array_equal(np.sort(epochs[-1]), targets)
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])


@pytest.mark.parametrize("in_place", [False, True])
def test_64_bit_vertices_sample_the_same(in_place: bool) -> None:
    narrow = random_graph(800, 15, seed=6, ids=np.int32)
    wide = random_graph(800, 15, seed=6, ids=np.int64)
    small = sampler_of(narrow, [70, 4], 200)
    large = sampler_of(wide, [70, 4], 200)
    units = small.units(0)
    a = small.sample(0, units, ALONE, in_place=in_place)
    b = large.sample(0, units.astype(np.int64), ALONE, in_place=in_place)
    for one, other in zip(a.blocks, b.blocks, strict=True):
        assert sampled_rows(one) == sampled_rows(other)
        assert one.destinations.dtype == np.int32
        assert other.destinations.dtype == np.int64
        assert other.columns.dtype == (np.int64 if other.in_place else np.int32)
        np.testing.assert_array_equal(one.destinations, other.destinations)
        np.testing.assert_array_equal(one.degrees, other.degrees)


def test_parallel_edges_are_drawn_as_edges() -> None:
    graph = graph_of([[1] * 30 + [2] * 30, [], []])
    sampler = sampler_of(graph, [-1], 3)
    assert sampled_rows(sampler.sample(0, np.array([0], np.int32), ALONE, in_place=False).blocks[0]) == [
        [1] * 30 + [2] * 30
    ]
    few = sampler_of(graph, [40], 3).sample(0, np.array([0], np.int32), ALONE, in_place=False).blocks[0]
    (neighbors,) = sampled_rows(few)
    assert len(neighbors) == 40
    assert neighbors.count(1) <= 30
    assert neighbors.count(2) <= 30


def test_class_weights_follow_the_labels() -> None:
    graph = random_graph(60, 3, seed=7)
    weights = np.array([0.5, 2.0, 7.0], np.float32)
    sampler = NeighborSampler(graph, np.arange(60), [2], 20, 0, class_weights=weights)
    batch = sampler.sample(0, sampler.units(0), ALONE, in_place=False)
    assert batch.target_weights is not None
    assert batch.target_weights.dtype == np.float32
    np.testing.assert_array_equal(batch.target_weights, weights[graph.labels[batch.targets]])


def test_mini_batches_in_flight_never_share_memory() -> None:
    graph = random_graph(3000, 10, seed=8)
    sampler = sampler_of(graph, [8, 4], 600)
    steps = range(3)
    addresses = []
    for _ in range(6):
        live = [sampler.sample(step, sampler.units(step), ALONE, in_place=False) for step in steps]
        # Targets are slices of the epoch's order, not of the pool.
        order = [sampler.units(0).base]
        spans = [memory_ranges(batch.blocks, order) for batch in live]
        for mine, theirs in itertools.combinations(spans, 2):
            assert not any(a < d and c < b for a, b in mine for c, d in theirs)
        # Nothing that was sampled later wrote into what was sampled before.
        for step, batch in zip(steps, live, strict=True):
            alone = sampler_of(graph, [8, 4], 600).sample(step, batch.targets, ALONE, in_place=False)
            for a, b in zip(batch.blocks, alone.blocks, strict=True):
                assert_equal_blocks(a, b)
        addresses.append({start for ranges in spans for start, _ in ranges})
        allocated = sampler._blocks.pool.allocated_bytes
        for batch in live:
            batch.release()
            batch.release()  # Once more gives nothing back twice.
    assert len(addresses[-1] & addresses[-2]) > len(addresses[-1]) // 2
    live = [sampler.sample(step, sampler.units(step), ALONE, in_place=False) for step in steps]
    assert sampler._blocks.pool.allocated_bytes == allocated


def test_too_many_edges_for_32_bits_is_an_error_before_any_is_read() -> None:
    # 30 vertices of 100 million neighbours each: counted, never touched.
    graph = graph_of([[]] * 30)
    far = Graph.from_arrays(
        graph.name,
        np.arange(31, dtype=np.int64) * 100_000_000,
        graph.topology.indices,
        graph.features,
        graph.labels,
        graph.masks,
    )
    # The check would find that the sources are not there.
    far.topology.__dict__["checked"] = far.topology
    sampler = sampler_of(far, [-1], 30)
    with pytest.raises(OverflowError, match="lower the fan-out"):
        sampler.sample(0, sampler.units(0), ALONE, in_place=False)
