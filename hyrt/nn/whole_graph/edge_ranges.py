"""Ranges of rows with about equal work, however unequal the rows are."""

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

# Edges and rows of a range: a tenth of a millisecond at the least, long against handing it to a thread.
_GRAIN = 1 << 14
# As many numbers are read along edges in less time than it takes to wake a thread and to wait for it.
_FEW_NUMBERS = 1 << 20
# A row with more edges is cut itself: else all other threads would wait for the one that has it.
_LONG = 4 * _GRAIN

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def _cut_all(indptr, grain, borders):
    """The row in which each multiple of the grain of edges and rows begins."""
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
    """As `_cut_all`, over the chosen rows; returns how many borders there are."""
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
    """Cut rows into consecutive ranges of about `grain` edges and rows together.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, where each row's edges start.
    rows
        [n] integers, the rows in question; all by default.
    grain
        Edges and rows of a range. A row is never cut: one with more edges makes a longer range.

    Returns
    -------
    [ranges + 1] int64: range k is borders[k] to borders[k + 1], of `rows` where they are given. The borders
    depend on nothing else, above all not on the number of threads.
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
    """A row of very many edges that several threads compute, whatever the operator."""

    def piece(self, number: int) -> None:
        """Compute one of its pieces; in any thread, in any order."""
        ...

    def finish(self) -> None:
        """Make the row's result of those of its pieces, when all are there."""
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
        Called with the number of a row of very many edges and the [pieces + 1] edges at which its pieces
        begin, as indptr; without it such a row is computed by one thread. Where a row is cut depends on its
        edges only.
    width
        Numbers that are read along an edge: where they are few, the calling thread computes all by itself.
    """
    count = len(indptr) - 1 if rows is None else len(rows)
    # No more than this many edges: then no row is cut either.
    alone = min(_LONG, max(_GRAIN, _FEW_NUMBERS // max(1, width)))
    if int(indptr[-1]) - int(indptr[0]) + count <= alone:
        # One range, and no row to be cut: of a small graph, to find that out would take as long as the work.
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
    for each in pieces:
        each.finish()


def _long_rows(indptr: NDArray[Any], rows: NDArray[Any] | None, borders: NDArray[np.int64]) -> set[int]:
    """The numbers of the rows to be cut: in a range, all but the last have fewer edges than the grain."""
    last = borders[1:] - 1
    vertices = last if rows is None else rows[last]
    return set(last[indptr[vertices + 1] - indptr[vertices] > _LONG].tolist())
