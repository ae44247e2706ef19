"""ShaDow's and Cluster-GCN's subgraphs against sets of vertices and edges in plain Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import graph_of, graphs, random_graph, row

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.cluster_sampler import ClusterSampler
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import sample_hop
from hyrt.sampling.shadow_sampler import ShadowSampler
from hyrt.sampling.subgraph_kernels import rows_ascend

ALONE = Workers(1, "test")


def drawn(graph: Graph, vertex: int, fanout: int, seed: int, step: int, hop: int) -> list[int]:
    """What neighbour sampling draws under the same key."""
    pool = BufferPool()
    key = stream_key(seed, SAMPLE, step, hop)
    ids = np.array([vertex], np.int32)
    return sample_hop(graph.topology, ids, fanout, key, ALONE, pool, PooledArrays(pool)).neighbors.tolist()


def subgraph_by_hand(graph: Graph, root: int, hops: int, fanout: int, seed: int, step: int) -> set[int]:
    members, frontier = {root}, {root}
    for hop in range(1, hops + 1):
        reached = {u for v in frontier for u in drawn(graph, v, fanout, seed, step, hop)}
        frontier = reached - members
        members |= reached
    return members


def subgraphs_of(batch: MiniBatch) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """Each target with the rows of its subgraph: by vertex, the vertices of its edges."""
    block = batch.blocks[0]
    sources = block.sources
    assert sources is not None
    rows = [block.columns[a:b].tolist() for a, b in zip(block.indptr, block.indptr[1:], strict=False)]
    for target in range(len(batch.targets)):
        reached, todo = {target}, [target]
        while todo:
            # A subgraph's rows hold together by its edges, in one direction or the other.
            here = todo.pop()
            near = {*rows[here], *(i for i, columns in enumerate(rows) if here in columns)} - reached
            reached |= near
            todo += near
        yield target, {int(sources[i]): sorted(int(sources[j]) for j in rows[i]) for i in reached}


@settings(max_examples=15, deadline=None)
@given(graphs(max_vertices=30), st.integers(1, 3), st.sampled_from([1, 2, 6]), st.integers(0, 99))
def test_a_target_has_its_own_subgraph_with_all_edges_inside(
    graph: Graph, hops: int, fanout: int, step: int
) -> None:
    everyone = np.arange(graph.num_vertices)
    sampler = ShadowSampler(graph, everyone, 2, hops, fanout, 6, 11)
    units = sampler.units(step)
    whole = sampler.sample(step, units, ALONE, in_place=False)
    pieces = [sampler.sample(step, units[:2], ALONE, in_place=False)]
    pieces += [sampler.sample(step, units[2:], ALONE, in_place=False)] if len(units) > 2 else []
    found = [rows for _, rows in subgraphs_of(whole)]
    assert [rows for piece in pieces for _, rows in subgraphs_of(piece)] == found
    num_rows = 0
    for unit, rows in zip(units, found, strict=True):
        members = subgraph_by_hand(graph, int(unit), hops, fanout, 11, step)
        assert rows == {v: sorted(u for u in row(graph, v) if u in members) for v in members}
        num_rows += len(members)
    first, last = whole.blocks
    assert first.num_src == first.num_dst == last.num_src == num_rows
    np.testing.assert_array_equal(last.destinations, units)
    np.testing.assert_array_equal(first.degrees, graph.topology.in_degrees[first.sources])
    assert (whole.normalizer, first.weights) == (len(units), None)


def test_edges_of_hubs_are_found_by_search_as_by_scanning() -> None:
    """The hub has 900 neighbours, each two or three times, and its subgraph at most 4 members: repeated edges
    count as often as they are there."""
    ring = [[(v + 1) % 900, 900] for v in range(900)]
    hub = sorted([*range(900), *range(900), *range(0, 900, 2)])
    graph = graph_of([*ring, hub])
    assert rows_ascend(graph.topology.indptr, graph.topology.indices)
    sampler = ShadowSampler(graph, np.array([900]), 2, 1, 3, 1, 0)
    for step in range(40):
        sampled = sampler.sample(step, np.array([900], np.int32), ALONE, in_place=False)
        ((_, rows),) = subgraphs_of(sampled)
        block = sampled.blocks[0]
        assert rows[900] == sorted(u for u in hub if u in rows)
        assert len(rows) <= 4
        assert block.num_edges == sum(map(len, rows.values()))


@pytest.mark.parametrize("parts_per_group", [1, 3])
def test_every_target_is_met_once_an_epoch_in_the_subgraph_of_its_group(parts_per_group: int) -> None:
    graph = random_graph(200, 8, seed=1)
    homes = np.random.default_rng(0).integers(0, 10, 200)
    # Part 4 has no targets, and is left out.
    targets = np.flatnonzero((homes != 4) & (np.arange(200) % 3 > 0))
    sampler = ClusterSampler(graph, targets, 2, homes, parts_per_group, 2, 7)
    groups = -(-9 // parts_per_group)
    assert sampler.steps_per_epoch() == -(-groups // 2)
    epochs = []
    for epoch in range(2):
        met, seen = [], []
        for step in range(epoch * sampler.steps_per_epoch(), (epoch + 1) * sampler.steps_per_epoch()):
            for unit in sampler.units(step):
                batch = sampler.sample(step, np.array([unit]), ALONE, in_place=False)
                first, last = batch.blocks
                parts = set(homes[first.sources].tolist())
                members = np.flatnonzero(np.isin(homes, list(parts)))
                assert len(parts) <= parts_per_group
                assert sorted(first.sources) == members.tolist()
                for v, a, b in zip(first.destinations, first.indptr, first.indptr[1:], strict=False):
                    wanted = [u for u in row(graph, int(v)) if homes[u] in parts]
                    assert first.sources[first.columns[a:b]].tolist() == wanted
                np.testing.assert_array_equal(last.destinations, batch.targets)
                assert sorted(batch.targets) == sorted(set(members) & set(targets.tolist()))
                assert batch.normalizer == len(batch.targets)
                met += batch.targets.tolist()
                seen.append(tuple(sorted(parts)))
        assert sorted(met) == targets.tolist()
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"allow subgraphs of up to 1,010,101 vertices per target: lower"):
        build_config({"sampler": {"kind": "shadow", "hops": 3, "hop_neighbors": 100}})
    settings = build_config({"sampler": {"kind": "cluster", "parts": 9, "method": "block"}}).sampler
    graph = random_graph(5, 2, seed=0)
    with pytest.raises(ConfigError, match=r"sampler\.parts=9 exceeds the 5 vertices of small: lower"):
        settings.build(graph, np.arange(5), layers=1, batch_size=5, seed=0)
