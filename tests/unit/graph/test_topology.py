"""Whether a topology is its own transpose, and the transpose of one that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import random_graph, with_values

from hyrt.graph import open_graph, topology
from hyrt.graph.topology import Topology
from hyrt.runtime.workers import Workers, use_workers


def of_counts(counts: np.ndarray) -> Topology:
    """counts[i, c] edges from c into i."""
    columns = np.repeat(np.tile(np.arange(len(counts)), len(counts)), counts.ravel()).astype(np.int32)
    return Topology(np.concatenate([[0], np.cumsum(counts.sum(1))]), columns)


def drawn(vertices: int = 50, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = (rng.random((vertices, vertices)) < 0.1) * rng.integers(1, 4, (vertices, vertices))
    counts[:, 7] = counts[9] = 0
    return counts.astype(np.int64)


def test_edges_that_pair_off_are_symmetric_and_need_no_transpose() -> None:
    counts = drawn()
    symmetric = of_counts(counts + counts.T)
    assert symmetric.is_symmetric
    assert symmetric.transposed is symmetric
    assert of_counts(np.eye(4, dtype=np.int64)).is_symmetric
    assert of_counts(np.zeros((4, 4), np.int64)).is_symmetric
    assert Topology(np.zeros(1, np.int64), np.zeros(0, np.int32)).is_symmetric


def test_one_edge_more_or_elsewhere_is_not_symmetric() -> None:
    rng = np.random.default_rng(1)
    counts = drawn()
    counts += counts.T
    for i, c in rng.choice(50, (40, 2)):
        if i == c:
            continue
        more = counts.copy()
        more[i, c] += 1
        assert not of_counts(more).is_symmetric, "the two directions have different numbers of edges"
        j = (c + 1) % 50
        if counts[i, c] and j != i:
            elsewhere = counts.copy()
            elsewhere[i, c] -= 1
            elsewhere[i, j] += 1
            assert not of_counts(elsewhere).is_symmetric
    # 1 -> 0 without its opposite, hidden behind an edge to a higher vertex.
    unsorted = Topology(np.array([0, 2, 2, 3]), np.array([2, 1, 0], np.int32))
    assert not unsorted.is_symmetric


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("vertices", [50, 9000], ids=["one pass", "three passes"])
def test_the_transpose_and_its_edge_numbers(vertices: int, symmetric: bool) -> None:
    rng = np.random.default_rng(2)
    ends = rng.integers(0, vertices, (2, 3 * vertices))
    if symmetric:
        ends = np.concatenate([ends, ends[::-1]], 1)
    rows, columns = ends[:, np.lexsort(ends[::-1])]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=vertices))])
    topology = Topology(indptr, columns.astype(np.int32))
    assert topology.is_symmetric == symmetric
    with Workers(3, "threads") as workers, use_workers(workers):
        turned, edges = topology.transposed, topology.transposed_edges
    order = np.lexsort((np.arange(len(rows)), rows, columns))
    np.testing.assert_array_equal(turned.indices, rows[order])
    np.testing.assert_array_equal(np.diff(turned.indptr), np.bincount(columns, minlength=vertices))
    np.testing.assert_array_equal(edges, order)
    assert edges.dtype == turned.indices.dtype == np.int32
    assert not symmetric or turned is topology
    if not symmetric:
        # What is known is not found again.
        assert "is_symmetric" in vars(turned)
        np.testing.assert_array_equal(turned.transposed.indices, topology.indices)


@pytest.mark.parametrize("source", ["synthetic:tiny", "synthetic:hetero"])
def test_graphs_and_what_they_hold_are_equal_to_themselves_only(source: str) -> None:
    """Arrays have no single truth: comparing them one by one would end in numpy's words."""
    one, other = open_graph(source), open_graph(source)
    for name in ("topology", "vertices", "features"):
        mine, others = getattr(one, name), getattr(other, name)
        assert (mine == mine, mine == others, len({mine, others})) == (True, False, 2)
    assert (one == one, one == other, one != other, one in (other, one)) == (True, False, True, True)
    assert len({one, other}) == 2


def test_the_checksum_tells_edges_that_differ_in_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one value of one edge, in a swap of two, and in lengths of rows; not in how they are stored."""
    monkeypatch.setattr(topology, "_HASH_KEYS", topology._HASH_KEYS[:7])
    monkeypatch.setattr(topology, "_BLOCKS_AT_ONCE", 3)
    graph = with_values(random_graph(60, 5), columns=2)
    types = np.arange(graph.num_edges, dtype=np.int8) % 3
    edges = replace(graph.topology, edge_types=types)
    stored = replace(edges, indices=edges.indices.astype(np.int64), edge_types=types.astype(np.int32))
    with Workers(3, "test") as workers, use_workers(workers):
        assert stored.checksum == edges.checksum
    seen, num_seen = {edges.checksum}, 1
    for key in ("indices", "edge_types", "edge_weights", "edge_features"):
        for place in range(0, graph.num_edges - 1, 9):
            values = getattr(edges, key).copy()
            values[place] += 1
            swapped = getattr(edges, key).copy()
            swapped[[place, place + 1]] = swapped[[place + 1, place]]
            others = [values] if (swapped == getattr(edges, key)).all() else [values, swapped]
            seen |= {replace(edges, **{key: other}).checksum for other in others}
            num_seen += len(others)
    row = int(np.flatnonzero(edges.in_degrees)[3])
    indptr = edges.indptr.copy()
    indptr[row + 1] -= 1
    others = [
        replace(edges, indptr=indptr),
        replace(edges, edge_weights=None),
        replace(edges, edge_types=None),
        # The vertices after the last edge count.
        replace(edges, indptr=np.append(edges.indptr, edges.indptr[-1])),
    ]
    seen |= {other.checksum for other in others}
    assert len(seen) == num_seen + len(others)


def test_edges_without_self_loops_have_the_checksum_of_the_dataset() -> None:
    whole = of_counts(drawn() + np.eye(50, dtype=np.int64))
    assert whole.num_self_loops
    assert whole.without_self_loops.checksum == whole.checksum
    left = whole.without_self_loops
    assert Topology(left.indptr, left.indices).checksum != whole.checksum
