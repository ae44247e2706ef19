"""Rows that no edge of a chunk needs stay on the host: against sets of the edges' ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.fullgraph import chunked_trainer
from hyrt.fullgraph.chunk_grid import EdgeChunks
from hyrt.fullgraph.device_relay import RowReader
from hyrt.fullgraph.intervals import Intervals
from hyrt.fullgraph.layer_edges import SelectiveRows
from hyrt.fullgraph.matrix_pool import MatrixPool

Edges = list[tuple[int, int]]


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[Edges, Intervals, Intervals]:
    num = draw(st.integers(1, 25))
    ends = st.integers(0, num - 1)
    edges = sorted(draw(st.lists(st.tuples(ends, ends), max_size=60)))
    return edges, Intervals(num, draw(st.integers(1, num))), Intervals(num, draw(st.integers(1, num)))


def chunks_of(edges: Edges, rows: Intervals, columns: Intervals) -> EdgeChunks:
    indptr = np.zeros(rows.num_rows + 1, np.int64)
    np.add.at(indptr, [row + 1 for row, _ in edges], 1)
    indices = np.array([column for _, column in edges], np.int32)
    return EdgeChunks.from_edges(np.cumsum(indptr), indices, rows, columns, MatrixPool())


@given(cut_graphs(), st.data())
@settings(deadline=None, max_examples=60)
def test_rows_are_filtered_for_chunks_that_use_less_than_the_limit(
    drawn: tuple[Edges, Intervals, Intervals], data: st.DataObject
) -> None:
    _, rows, columns = drawn
    limits = data.draw(st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.0]), min_size=rows.num, max_size=rows.num))
    own = data.draw(st.booleans())

    def others(i: int, j: int) -> np.ndarray:
        """Of vertices that are in both intervals, as destinations that read their own rows."""
        (start, stop), (first, last) = rows.range(i), columns.range(j)
        return np.arange(max(start, first), min(stop, last)) - first if own else np.empty(0, np.int64)

    plain, chunks = chunks_of(*drawn), chunks_of(*drawn)
    useful = SelectiveRows.select(chunks, limits, others, MatrixPool())
    most = 0
    for i in range(rows.num):
        for j in range(columns.num):
            before, chunk = plain.chunk(i, j), chunks.chunk(i, j)
            used = set(before.columns.tolist()) | set(others(i, j).tolist())
            found = useful.chunk_rows(i, j)
            if 0 < len(used) < limits[i] * columns.length(j):
                assert found is not None
                assert found.tolist() == sorted(used)
                assert found[chunk.columns].tolist() == before.columns.tolist()
                most = max(most, len(used))
            else:
                assert found is None
                assert chunk.columns.tolist() == before.columns.tolist()
    assert useful.max_rows == most


class LateCopies:
    """Copies what it is given when it has to: the parts of `ChunkKernels` that bring rows."""

    def __init__(self) -> None:
        self.copied: list[np.ndarray] = []
        self._waiting: list[tuple[int, np.ndarray]] = []

    def put(self, place: str, rows: np.ndarray) -> None:
        assert place == "read"
        self._waiting.append((rows.ctypes.data, rows))

    def wait_for_array(self, rows: np.ndarray) -> None:
        if any(address == rows.ctypes.data for address, _ in self._waiting):
            self.wait()

    def wait(self) -> None:
        self.copied += [rows.copy() for _, rows in self._waiting]
        self._waiting.clear()

    def set_trace_label(self, chunk: str) -> None:
        pass


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_useful_rows_are_copied_as_they_are_in_the_order_of_their_chunks(dtype: Any) -> None:
    random = np.random.default_rng(0)
    kernels: Any = LateCopies()
    reader, wanted, spared = RowReader(40 * 7, MatrixPool()), [], 0
    for turn in range(7):
        width = 3 + turn % 5
        rows = random.standard_normal((40, width)).astype(dtype)
        useful = np.flatnonzero(random.random(40) < 0.5).astype(np.int32)
        reader.read(kernels, rows, useful)
        wanted.append(rows.astype(np.float32)[useful])
        spared += 4 * width * (40 - len(useful))
    whole = random.standard_normal((40, 5)).astype(np.float32)
    reader.read(kernels, whole, None)
    kernels.wait()
    for copied, rows in zip(kernels.copied, [*wanted, whole], strict=True):
        assert np.array_equal(copied, rows)
    assert (reader.reads, reader.filtered, reader.spared_bytes) == (8, 7, spared)
    reader.reset()
    assert (reader.reads, reader.filtered, reader.spared_bytes, reader.filter_s) == (0, 0, 0, 0)


def test_the_limit_follows_the_rates_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that the copies move on: gathering takes 1 ms, and the link carries 1 MB/s."""
    now = [0.0]

    class Link(LateCopies):
        def wait(self) -> None:
            now[0] += sum(rows.nbytes for _, rows in self._waiting) / 1e6
            super().wait()

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    monkeypatch.setattr("time.perf_counter", clock)
    link: Any = Link()
    limit = chunked_trainer.measure_filter_limit(link, 1000, 8)
    transfer_s = 1000 * 8 * 4 / 1e6 + 1e-3
    # Half of the rows were gathered; at the limit, both ways take equally long.
    assert limit * (2e-3 + transfer_s) == pytest.approx(transfer_s)
