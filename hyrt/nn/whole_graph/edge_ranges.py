"""Ranges of rows with about equal work, for rows of very different lengths."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import Workers, current_workers

# Edges plus rows per range: at least 0.1 ms of work, which is long compared with scheduling a thread.
_GRAIN = 1 << 14
# Reading this many values along edges takes less time than waking a thread and waiting for it.
_FEW_NUMBERS = 1 << 20
# A row with more edges is split: otherwise all other threads would wait for the thread that computes it.
_LONG = 4 * _GRAIN

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def _cut_all(indptr, grain, borders):
    """Find the row in which each multiple of `grain` edges and rows begins."""
    size = len(indptr) - 1
    for k in range(1, len(borders) - 1):
        low, high = borders[k - 1], size
        while low < high:
            middle = (low + high) // 2
            if indptr[middle] - indptr[0] + middle < k * grain:
                low = middle + 1
            else:
                high = middle
        borders[k] = low


@_compile
def _cut_chosen(indptr, rows, grain, borders):
    """Find the borders like `_cut_all`, over the chosen rows; return the number of borders."""
    count = 1
    done = 0
    for k in range(len(rows)):
        if done >= grain:
            borders[count] = k
            count += 1
            done = 0
        done += indptr[rows[k] + 1] - indptr[rows[k]] + 1
    borders[count] = len(rows)
    return count + 1


def edge_ranges(
    indptr: NDArray[Any], rows: NDArray[Any] | None = None, grain: int = _GRAIN
) -> NDArray[np.int64]:
    """Divide rows into consecutive ranges of about `grain` edges and rows together.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, the first edge of each row.
    rows
        [n] integers, the rows to divide; all by default.
    grain
        Edges and rows per range. A row is never split: a row with more edges makes a longer range.

    Returns
    -------
    [ranges + 1] int64: range k is borders[k] to borders[k + 1], as indices into `rows` if given. The borders
    depend on the arguments only, in particular not on the number of threads.
    """
    if rows is None:
        size = len(indptr) - 1
        pieces = max(1, -(-(int(indptr[-1]) - int(indptr[0]) + size) // grain))
        if pieces == 1:
            return np.array([0, size] if size else [0], np.int64)
        borders = np.zeros(pieces + 1, np.int64)
        borders[-1] = size
        _cut_all(indptr, grain, borders)
        return np.unique(borders)
    borders = np.zeros(len(rows) + 2, np.int64)
    return borders[: _cut_chosen(indptr, rows, grain, borders)]


class CutRow(Protocol):
    """A row with very many edges that several threads compute; independent of the operator."""

    def piece(self, number: int) -> None:
        """Compute one piece of the row, in any thread and any order."""
        ...

    def finish(self) -> None:
        """Combine the results of all pieces into the row's result, after all pieces are computed."""
        ...


def run_by_edges(
    work: Callable[[int, int], None],
    indptr: NDArray[Any],
    rows: NDArray[Any] | None = None,
    workers: Workers | None = None,
    cut: Callable[[int, NDArray[Any]], CutRow] | None = None,
    width: int = _FEW_NUMBERS // _GRAIN,
) -> None:
    """Call `work(start, stop)` for the ranges of `edge_ranges`, shared by a team of threads.

    Parameters
    ----------
    work
        Computes the rows from `start` to `stop`.
    indptr, rows
        The arguments of `edge_ranges`.
    workers
        The team; the calling thread's by default.
    cut
        Called with the index of a row with very many edges and the [pieces + 1] first edges of its pieces, in
        the format of indptr; without it one thread computes the row. The split of a row depends on its edges
        only.
    width
        Number of values that are read per edge: if there are few in total, the calling thread computes
        everything.
    """
    count = len(indptr) - 1 if rows is None else len(rows)
    # At most this many edges, so that no row would be split either.
    alone = min(_LONG, max(_GRAIN, _FEW_NUMBERS // max(1, width)))
    if int(indptr[-1]) - int(indptr[0]) + count <= alone:
        # A single range and no row to split: for a small graph, finding the ranges would take as long as the
        # work.
        if count:
            work(0, count)
        return
    team, borders = workers or current_workers(), edge_ranges(indptr, rows)
    ends = itertools.pairwise(borders.tolist())
    long = set() if cut is None else _long_rows(indptr, rows, borders)
    if cut is None or not long:
        pairs = list(ends)

        def ranges(first: int, last: int) -> None:
            for start, stop in pairs[first:last]:
                work(start, stop)

        team.run(ranges, len(pairs), 1)
        return
    calls: list[Callable[[], None]] = []
    pieces: list[CutRow] = []
    for start, stop in ends:
        last = stop - 1 if stop - 1 in long else stop
        if last > start:
            calls.append(partial(work, start, last))
        if last < stop:
            i = last if rows is None else int(rows[last])
            starts = np.append(np.arange(indptr[i], indptr[i + 1], _GRAIN), indptr[i + 1])
            pieces.append(cut(last, starts.astype(indptr.dtype)))
            calls += [partial(pieces[-1].piece, number) for number in range(len(starts) - 1)]

    def ranges_and_pieces(first: int, last: int) -> None:
        for call in calls[first:last]:
            call()

    team.run(ranges_and_pieces, len(calls), 1)
    for row in pieces:
        row.finish()


def _long_rows(indptr: NDArray[Any], rows: NDArray[Any] | None, borders: NDArray[np.int64]) -> set[int]:
    """Find the rows to split: in a range, all rows but the last have fewer edges than the grain."""
    last = borders[1:] - 1
    vertices = last if rows is None else rows[last]
    return set(last[indptr[vertices + 1] - indptr[vertices] > _LONG].tolist())
