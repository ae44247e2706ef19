"""Traversal of CSR topologies in compiled loops: row layouts, column passes, prefetching, balanced ranges."""

# mypy: disable-error-code="no-untyped-def,misc,call-arg,unreachable"

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers, current_workers

AHEAD = 64
"""Prefetch distance in edges. With a smaller one, rows of 16 columns take 1.2 times as long."""

# Maximum columns per pass over the edges. More would exceed the registers of a processor with AVX-512.
_MAX_LANES = 128
_MIN_LANES = 1

_ELEMENTS = (np.float32, np.float64, np.uint16, np.int16)


def flatten_rows(name: str, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return a matrix as a flat array, and the number of elements from one row to the next.

    Raises ValueError if the columns are not adjacent, or if the dtype is not float32, float64, uint16
    (float16 bits) or int16 (bfloat16 bits).
    """
    if x.ndim != 2 or x.dtype not in _ELEMENTS:
        raise ValueError(
            f"{name} has shape {x.shape} and dtype {x.dtype}: pass a matrix of float32, float64, uint16 "
            "(float16 bits) or int16 (bfloat16 bits)"
        )
    size = x.dtype.itemsize
    if x.size and (x.strides[1] != size or x.strides[0] % size) and x.shape[1] > 1:
        raise ValueError(f"{name} has strides {x.strides}: its columns must be adjacent in memory")
    if x.flags.c_contiguous:
        return x.reshape(-1), x.shape[1]
    step = x.shape[1] if len(x) == 1 else x.strides[0] // size
    return as_strided(x[0], ((len(x) - 1) * step + x.shape[1],), (size,)), step


def flatten_contiguous(name: str, x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a C-contiguous array with the given shape as a flat array.

    Raises ValueError for other arrays, and for dtypes that `flatten_rows` does not accept.
    """
    if x.shape != shape or x.dtype not in _ELEMENTS or not x.flags.c_contiguous:
        raise ValueError(
            f"{name} has shape {x.shape} and dtype {x.dtype}: pass a C-contiguous array of shape {shape} "
            "with dtype float32, float64, uint16 (float16 bits) or int16 (bfloat16 bits)"
        )
    return x.reshape(-1)


def cast_row_ids(rows: NDArray[Any] | None, columns: NDArray[Any]) -> NDArray[Any] | None:
    """Convert row ids to the dtype of the columns, so that all integer types use one compiled loop."""
    return None if rows is None else rows.astype(columns.dtype, copy=False)


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which rows of a dtype are summed: float32, or float64 for float64 rows."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def column_passes(width: int) -> list[tuple[int, int, int | None]]:
    """Divide the columns of a row into passes over the edges.

    Each pass has its first column, the number of vector lanes, and the number of used lanes (None: all).
    """
    passes = []
    for column in range(0, width, _MAX_LANES):
        passes.append((column, *_lanes(min(width - column, _MAX_LANES))))
    return passes


def head_passes(heads: int, width: int) -> list[tuple[int, int, int, int | None]]:
    """Divide the heads of a row into passes over the edges, each with complete heads.

    Each pass has its first head, the number of heads, and the lanes as in `column_passes`.
    """
    pass_heads = max(1, min(heads, _MAX_LANES // width))
    passes = []
    for head in range(0, heads, pass_heads):
        number = min(pass_heads, heads - head)
        passes.append((head, number, *_lanes(number * width)))
    return passes


def _lanes(columns: int) -> tuple[int, int | None]:
    # Numbers of lanes other than powers of two compile to slow code.
    lanes = max(_MIN_LANES, 1 << (columns - 1).bit_length())
    return lanes, None if columns == lanes else columns


# Prefetch distance in rows for the edges of a row; for its indptr, it is twice as long. Without prefetching,
# sums of 16 columns for one in twelve vertices take 1.4 times as long.
_ROWS = 4


@nb.njit(inline="always", cache=True)
def prefetch_edges(indptr, columns, rows, k, stop):
    """Prefetch the indptr of row k + 8 and the edges of row k + 4; the last row is stop - 1."""
    prefetch(indptr, np.int64(rows[min(k + 2 * _ROWS, stop - 1)]))
    upcoming = np.int64(rows[min(k + _ROWS, stop - 1)])
    first = np.int64(indptr[upcoming])
    for e in range(first, min(first + 2 * AHEAD, np.int64(indptr[upcoming + 1])), 64 // columns.itemsize):
        prefetch(columns, e)


# Edges and rows per range: at least 0.1 ms of work, which is long compared with scheduling a thread.
_GRAIN = 1 << 14
# Number of values that one thread reads along edges in less time than it takes to wake another thread.
_FEW_NUMBERS = 1 << 20
# A row with more edges is split. Otherwise, all other threads would wait for the thread that computes it.
_LONG = 4 * _GRAIN

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def _cut_all(indptr, grain, borders):
    """Find the row at which each multiple of `grain` edges and rows begins."""
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
    """Find borders like `_cut_all` among the chosen rows; return the number of borders."""
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


def split_by_edges(
    indptr: NDArray[Any], rows: NDArray[Any] | None = None, grain: int = _GRAIN
) -> NDArray[np.int64]:
    """Divide rows into consecutive ranges with about `grain` edges and rows in total.

    Returns borders [ranges + 1] int64: range k is borders[k] to borders[k + 1], which are indices into `rows`
    if given. A row is never split, so a row with more edges has a longer range. The borders do not depend on
    the number of threads.
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


class SplitRow(Protocol):
    """Row with very many edges that several threads compute together, for any operator."""

    def compute_piece(self, number: int) -> None:
        """Compute one piece of the row. Pieces may be computed by any thread and in any order."""
        ...

    def finish(self) -> None:
        """Combine the results of all pieces, which have been computed, into the result of the row."""
        ...


def run_by_edges(
    work: Callable[[int, int], None],
    indptr: NDArray[Any],
    rows: NDArray[Any] | None = None,
    workers: Workers | None = None,
    split_row: Callable[[int, NDArray[Any]], SplitRow] | None = None,
    width: int = _FEW_NUMBERS // _GRAIN,
) -> None:
    """Call `work(start, stop)` for each range of `split_by_edges` in a team of threads.

    `split_row` is called for each row with very many edges, with its index and the first edge of each piece
    [pieces + 1], in the format of `indptr`. Without it, one thread computes the row. The pieces depend only
    on the edges of the row. `width` is the number of values read per edge: if the total is small, the calling
    thread computes everything.
    """
    count = len(indptr) - 1 if rows is None else len(rows)
    # With so few edges, no row would be split.
    alone = min(_LONG, max(_GRAIN, _FEW_NUMBERS // max(1, width)))
    if int(indptr[-1]) - int(indptr[0]) + count <= alone:
        # There is only one range. The general code below would take as long as the traversal itself.
        if count:
            work(0, count)
        return
    team, borders = workers or current_workers(), split_by_edges(indptr, rows)
    ends = itertools.pairwise(borders.tolist())
    long = set() if split_row is None else _long_rows(indptr, rows, borders)
    if split_row is None or not long:
        pairs = list(ends)

        def ranges(first: int, last: int) -> None:
            for start, stop in pairs[first:last]:
                work(start, stop)

        team.run(ranges, len(pairs), 1)
        return
    calls: list[Callable[[], None]] = []
    pieces: list[SplitRow] = []
    for start, stop in ends:
        last = stop - 1 if stop - 1 in long else stop
        if last > start:
            calls.append(partial(work, start, last))
        if last < stop:
            i = last if rows is None else int(rows[last])
            starts = np.append(np.arange(indptr[i], indptr[i + 1], _GRAIN), indptr[i + 1])
            pieces.append(split_row(last, starts.astype(indptr.dtype)))
            calls += [partial(pieces[-1].compute_piece, number) for number in range(len(starts) - 1)]

    def ranges_and_pieces(first: int, last: int) -> None:
        for call in calls[first:last]:
            call()

    team.run(ranges_and_pieces, len(calls), 1)
    for row in pieces:
        row.finish()


def _long_rows(indptr: NDArray[Any], rows: NDArray[Any] | None, borders: NDArray[np.int64]) -> set[int]:
    """Find the rows to split. Only the last row of a range can have more edges than the grain."""
    last = borders[1:] - 1
    vertices = last if rows is None else rows[last]
    return set(last[indptr[vertices + 1] - indptr[vertices] > _LONG].tolist())
