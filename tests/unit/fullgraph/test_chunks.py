"""Chunks of a graph: every edge in one of them, in every order, and as few as fit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.fullgraph.chunk_grid import (
    ChunkGrid,
    ChunkSizes,
    EdgeChunk,
    EdgeChunks,
    count_chunks,
    min_chunk_grid,
)
from hyrt.fullgraph.intervals import ChunkOrder, GroupedIntervals, Intervals, iterate_chunks
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.graph.topology import Topology

Edges = list[tuple[int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Topology, Edges]:
    """A directed graph with self loops, repeated edges and vertices without edges; (destination, source)."""
    num = draw(st.integers(1, 25))
    ends = st.integers(0, num - 1)
    edges = sorted(draw(st.lists(st.tuples(ends, ends), max_size=80)))
    return topology_of(num, edges), edges


def topology_of(num: int, edges: Edges) -> Topology:
    indptr = np.zeros(num + 1, np.int64)
    np.add.at(indptr, [row + 1 for row, _ in edges], 1)
    return Topology(np.cumsum(indptr), np.array([column for _, column in edges], np.int32))


def edges_of(chunk: EdgeChunk, row_start: int, column_start: int) -> Edges:
    """A chunk's edges, in its order, in the numbers of the whole."""
    assert len(chunk.starts) == len(chunk.rows) + 1
    assert chunk.starts[0] == 0
    assert chunk.starts[-1] == len(chunk.columns)
    found = []
    for n, row in enumerate(chunk.rows):
        assert chunk.starts[n] < chunk.starts[n + 1], "a row without edges"
        found += [
            (row_start + int(row), column_start + int(column))
            for column in chunk.columns[chunk.starts[n] : chunk.starts[n + 1]]
        ]
    return found


def all_edges(chunks: EdgeChunks) -> Edges:
    found = []
    for i in range(chunks.rows.num):
        for j in range(chunks.columns.num):
            (start, stop), (first, last) = chunks.rows.range(i), chunks.columns.range(j)
            edges = edges_of(chunks.chunk(i, j), start, first)
            assert all(start <= row < stop and first <= column < last for row, column in edges)
            assert edges == sorted(edges)
            found += edges
    return found


@given(st.integers(1, 60), st.data())
def test_intervals_hold_each_row_once_in_equal_parts(rows: int, data: st.DataObject) -> None:
    cut = Intervals(rows, data.draw(st.integers(1, rows)))
    ranges = [cut.range(i) for i in range(cut.num)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(rows))
    lengths = {stop - start for start, stop in ranges}
    assert max(lengths) == cut.longest
    assert max(lengths) - min(lengths) <= 1
    assert cut.starts.tolist() == [start for start, _ in ranges] + [rows]


@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=4), st.data())
def test_groups_of_intervals_follow_each_other(rows: int, counts: list[int], data: st.DataObject) -> None:
    first = Intervals(rows, data.draw(st.integers(1, rows)))
    cut = GroupedIntervals.build(first, counts)
    ranges = [cut.range(i) for i in range(cut.num)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(rows + sum(counts)))
    assert cut.starts.tolist() == [start for start, _ in ranges] + [cut.num_rows]
    assert max(cut.length(i) for i in range(cut.num)) == cut.longest == first.longest
    begins = 0
    for group, count in enumerate([rows, *counts]):
        mine = [ranges[i] for i in cut.group_intervals(group)]
        assert sum(stop - start for start, stop in mine) == count
        assert not mine or (mine[0][0], mine[-1][1]) == (begins, begins + count)
        # As few as make none longer than those of the first.
        assert group == 0 or len(mine) == -(-count // first.longest)
        begins += count


@pytest.mark.parametrize("num", [0, 6])
def test_more_intervals_than_rows_are_refused(num: int) -> None:
    with pytest.raises(ValueError, match=f"5 rows cannot be divided into {num} intervals"):
        Intervals(5, num)


@given(graphs(), st.data())
@settings(deadline=None, max_examples=60)
def test_every_edge_is_in_one_chunk_and_none_is_lost_when_they_are_turned(
    drawn: tuple[Topology, Edges], data: st.DataObject
) -> None:
    topology, edges = drawn
    num = topology.num_vertices
    cuts = [Intervals(num, data.draw(st.integers(1, num))) for _ in range(2)]
    memory = MatrixPool()
    chunks = EdgeChunks.from_edges(topology.indptr, topology.indices, *cuts, memory)
    assert Counter(all_edges(chunks)) == Counter(edges)
    turned = chunks.transpose(memory)
    assert Counter(all_edges(turned)) == Counter((column, row) for row, column in edges)


@given(graphs(), st.data())
@settings(deadline=None, max_examples=60)
def test_chunks_of_chosen_vertices_hold_their_edges(
    drawn: tuple[Topology, Edges], data: st.DataObject
) -> None:
    topology, edges = drawn
    num = topology.num_vertices
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1))), np.int32)
    rows = Intervals(len(chosen), data.draw(st.integers(1, len(chosen))))
    columns = Intervals(num, data.draw(st.integers(1, num)))
    counts = count_chunks(topology.indptr, topology.indices, rows, columns, chosen)
    chunks = EdgeChunks.from_edges(topology.indptr, topology.indices, rows, columns, MatrixPool(), chosen)
    position = {int(vertex): n for n, vertex in enumerate(chosen)}
    wanted = Counter((position[row], column) for row, column in edges if row in position)
    assert Counter(all_edges(chunks)) == wanted
    for i in range(rows.num):
        for j in range(columns.num):
            chunk = chunks.chunk(i, j)
            assert counts.edges[i, j] == len(chunk.columns)
            assert counts.rows[i, j] == len(chunk.rows)


def test_rows_that_are_not_sorted_are_sorted_into_chunks() -> None:
    topology = Topology(np.array([0, 4, 4, 5]), np.array([2, 0, 1, 0, 2], np.int32))
    cut = Intervals(3, 3)
    chunks = EdgeChunks.from_edges(topology.indptr, topology.indices, cut, cut, MatrixPool())
    assert Counter(all_edges(chunks)) == Counter([(0, 2), (0, 0), (0, 1), (0, 0), (2, 2)])


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["column-row", "row-column"]))
def test_every_chunk_is_visited_once(accumulated: int, read: int, order: ChunkOrder) -> None:
    seen = list(iterate_chunks(range(accumulated), range(read), order))
    pairs = [(each.accumulated, each.read) for each in seen]
    assert sorted(pairs) == [(i, j) for i in range(accumulated) for j in range(read)]
    for i in range(accumulated):
        mine = [each for each in seen if each.accumulated == i]
        assert [each.is_first for each in mine] == [True] + [False] * (read - 1)
        assert [each.is_last for each in mine] == [False] * (read - 1) + [True]
    stays = [pair[0 if order == "column-row" else 1] for pair in pairs]
    assert stays == sorted(stays), "what stays comes once"


def needed(sizes: ChunkSizes) -> int:
    """As a device that has two matrices of 10 columns, and a chunk's edges."""
    return 80 * sizes.vertices + 40 * sizes.targets + 4 * sizes.edges + 8 * sizes.edge_rows + 300


@given(graphs(), st.data(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_grid_fits_and_none_with_fewer_intervals_does(
    drawn: tuple[Topology, Edges], data: st.DataObject, hidden: bool
) -> None:
    topology, edges = drawn
    # The last vertices may be of other processes: nothing is gathered at them.
    num = data.draw(st.integers(1, topology.num_vertices))
    first = data.draw(st.integers(0, topology.num_vertices - num))
    remote = [first, topology.num_vertices - num - first] if num < topology.num_vertices else []
    topology = topology_of(topology.num_vertices, [edge for edge in edges if edge[0] < num])
    # One without targets has the rows of others to compute.
    few = data.draw(st.sets(st.integers(0, num - 1), min_size=0 if remote else 1))
    targets = np.array(sorted(few), np.int32)
    budget = data.draw(st.integers(300, 3000))
    takes = {
        each: needed(ChunkGrid.build(topology, targets, each, has_hidden_layers=hidden, remote=remote).sizes)
        for each in range(1, num + 1)
    }
    fitting = [each for each, taken in takes.items() if taken <= budget]
    if not fitting:
        with pytest.raises(DeviceOutOfMemoryError, match="even single-vertex chunks need"):
            min_chunk_grid(topology, targets, needed, budget, has_hidden_layers=hidden, remote=remote)
        return
    grid = min_chunk_grid(topology, targets, needed, budget, has_hidden_layers=hidden, remote=remote)
    assert needed(grid.sizes) <= budget
    assert grid.vertices.num == fitting[0]
    assert grid.targets.num_rows == len(targets)
    assert grid.targets.longest <= grid.vertices.longest


def test_edges_from_remote_rows_are_in_chunks_of_their_own() -> None:
    """Every one of 4 vertices has edges from all of them and from 4 remote ones: 16 in each of two chunks."""
    topology = topology_of(8, [(row, column) for row in range(4) for column in range(8)])
    targets = np.arange(4, dtype=np.int32)
    one = ChunkGrid.build(topology, targets, 1, has_hidden_layers=True, remote=[4])
    assert one.sizes == ChunkSizes(vertices=4, targets=4, edges=16, edge_rows=4)
    assert (
        min_chunk_grid(
            topology, targets, needed, needed(one.sizes), has_hidden_layers=True, remote=[4]
        ).vertices.num
        == 1
    )


@given(graphs(), st.data())
@settings(deadline=None, max_examples=60)
def test_no_chunk_is_larger_than_the_sizes_of_its_grid(
    drawn: tuple[Topology, Edges], data: st.DataObject
) -> None:
    topology, _ = drawn
    num = topology.num_vertices
    targets = np.array(sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1))), np.int32)
    grid = ChunkGrid.build(topology, targets, data.draw(st.integers(1, num)), has_hidden_layers=True)
    memory, edges = MatrixPool(), (topology.indptr, topology.indices)
    forward = EdgeChunks.from_edges(*edges, grid.vertices, grid.vertices, memory)
    into = EdgeChunks.from_edges(*edges, grid.targets, grid.vertices, memory, targets)
    for chunks in (forward, forward.transpose(memory), into, into.transpose(memory)):
        for i in range(chunks.rows.num):
            for j in range(chunks.columns.num):
                chunk = chunks.chunk(i, j)
                assert len(chunk.columns) <= grid.sizes.edges
                assert len(chunk.rows) <= grid.sizes.edge_rows
