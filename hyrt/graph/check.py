"""Checks of dataset arrays, chunk by chunk. Errors name the position of the first violation."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from hyrt_perfmodel.nearest_name import nearest_name
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.labels.label_kind import is_labelled

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]

CHUNK = 1 << 20
MOST_TYPES = 1 << 24
"""Maximum number of edge types: float32 represents all integers below it exactly."""


_INDPTR = "make it by numpy.concatenate([[0], numpy.cumsum(lengths)]), of the lengths of all rows"


def reject(source: str, key: str, problem: str) -> DataError:
    """Build the error for one key of a dataset; a problem that starts with "has" or "is" follows the key
    directly.
    """
    colon = "" if problem.startswith(("has ", "is ")) else ":"
    return DataError(f"{source}: key '{key}'{colon} {problem}")


def first_bad(bad: Callable[[int, int], BoolArray], count: int) -> int | None:
    """Return the first position at which `bad(start, stop)` is true."""
    for start in range(0, count, CHUNK):
        hits = bad(start, min(start + CHUNK, count))
        if hits.any():
            return start + int(hits.argmax())
    return None


def check_indptr(source: str, key: str, indptr: Array, num_entries: int, entries: str) -> None:
    """Check that a row pointer starts at 0, never decreases and ends at the number of entries."""
    if len(indptr) == 0:
        raise reject(source, key, f"is empty, and has one entry more than there are vertices: {_INDPTR}")
    if indptr[0] != 0:
        raise reject(
            source, key, f"value {indptr[0]} at position 0 is not 0, where the first row starts: {_INDPTR}"
        )
    at = first_bad(lambda a, b: indptr[a + 1 : b + 1] < indptr[a:b], len(indptr) - 1)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {indptr[at + 1]} at position {at + 1} is less than the one before it, {indptr[at]}: "
            f"{_INDPTR}",
        )
    if indptr[-1] != num_entries:
        raise reject(
            source,
            key,
            f"value {indptr[-1]} at position {len(indptr) - 1} is not the length of '{entries}', "
            f"{num_entries:,}: {_INDPTR}",
        )


def check_columns(
    source: str,
    key: str,
    columns: Array,
    indptr: Array,
    bound: int,
    what: str,
    *,
    ordered: bool = True,
    dataset: str | None = None,
) -> None:
    """Check that CSR entries are in 0..bound-1 and, if `ordered`, strictly increasing within a row.

    `dataset` is the path in the suggested convert command (default: the source).
    """

    def outside(a: int, b: int) -> BoolArray:
        part = columns[a:b]
        return (part < 0) | (part >= bound)

    def unsorted(a: int, b: int) -> BoolArray:
        # Position a is compared with a-1, unless a row starts there.
        low = max(a, 1)
        bad = np.zeros(b - a, np.bool_)
        bad[low - a :] = columns[low:b] <= columns[low - 1 : b - 1]
        first, last = np.searchsorted(indptr, [a, b])
        bad[indptr[first:last] - a] = False
        return bad

    at = first_bad(outside, len(columns))
    disorder = first_bad(unsorted, len(columns) if at is None else at) if ordered else None
    if disorder is not None:
        row = int(np.searchsorted(indptr, disorder, side="right")) - 1
        pair = "repeats" if columns[disorder] == columns[disorder - 1] else "is below"
        raise reject(
            source,
            key,
            f"value {columns[disorder]} at position {disorder} {pair} the one before it in row {row}: "
            "rows must be strictly increasing; to sort them: hyrt data convert "
            f"{shlex.quote(dataset or source)} DESTINATION --sort --unique",
        )
    if at is not None:
        value = columns[at]
        if value < 0:
            raise reject(source, key, f"value {value} at position {at} is negative: number {what} from 0 on")
        raise reject(
            source,
            key,
            f"value {value} at position {at} is not below the {bound:,} {what}: number them from 0 on",
        )


def check_edge_types(source: str, key: str, types: Array, num_edges: int) -> None:
    """Check that there is one type per edge, from 0 to the largest that float32 represents exactly."""
    if len(types) != num_edges:
        raise reject(source, key, f"has {len(types):,} entries for {num_edges:,} edges: give one for each")
    at = first_bad(lambda a, b: (types[a:b] < 0) | (types[a:b] >= MOST_TYPES), num_edges)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {types[at]} at position {at} is not from 0 to {MOST_TYPES - 1:,}: number types from 0 on",
        )


def check_edge_weights(source: str, key: str, weights: Array, num_edges: int) -> None:
    """Check that there is one finite weight above 0 per edge."""
    if len(weights) != num_edges:
        raise reject(source, key, f"has {len(weights):,} entries for {num_edges:,} edges: give one for each")
    at = first_bad(lambda a, b: ~(np.isfinite(weights[a:b]) & (weights[a:b] > 0)), num_edges)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {weights[at]} at position {at} is not a finite number above 0: "
            "replace it, or leave out the edge",
        )


def check_edge_features(source: str, key: str, rows: Array, num_edges: int) -> None:
    """Check that there is one row of finite numbers per edge."""
    if len(rows) != num_edges:
        raise reject(source, key, f"has {len(rows):,} rows for {num_edges:,} edges: give one for each")
    if rows.shape[1] == 0:
        raise reject(source, key, "has no columns: give at least one, or omit the key")
    check_finite(source, key, row_blocks(rows))


def check_edge_times(source: str, key: str, times: Array, num_edges: int) -> None:
    """Check that there is one time per edge; nan is an unknown time."""
    if len(times) != num_edges:
        raise reject(source, key, f"has {len(times):,} entries for {num_edges:,} edges: give one for each")


def check_permutation(source: str, key: str, numbers: Array, count: int) -> None:
    """Check that vertex indices are a permutation of 0..count-1."""
    if len(numbers) != count:
        raise reject(source, key, f"has {len(numbers):,} rows for {count:,} vertices: give one each")
    at = first_bad(lambda a, b: (numbers[a:b] < 0) | (numbers[a:b] >= count), count)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {numbers[at]} at position {at} is none of the {count:,} vertices: number them from 0 on",
        )
    seen = np.zeros(count, np.bool_)
    seen[numbers] = True
    if not seen.all():
        raise reject(
            source,
            key,
            f"has no vertex {int(seen.argmin())}, but another one twice: it must name the original number "
            "of each vertex",
        )


def check_masks(
    source: str, keys: tuple[str, str, str], masks: tuple[Array, Array, Array], labels: Array
) -> None:
    """Check that the masks of a split have equal shapes, are disjoint and contain only labelled vertices."""
    count = len(labels)
    for key, mask in zip(keys, masks, strict=True):
        if len(mask) != count:
            raise reject(
                source, key, f"has {len(mask):,} rows for {count:,} vertices: give True or False for each"
            )
        if mask.shape != masks[0].shape:
            raise reject(
                source,
                key,
                f"shape {list(mask.shape)} differs from {list(masks[0].shape)} of '{keys[0]}': give "
                "equal ones",
            )
        if mask.ndim == 2 and mask.shape[1] == 0:
            raise reject(source, key, f"shape {list(mask.shape)} has no split: give at least one column")
    for i, (key, mask) in enumerate(zip(keys, masks, strict=True)):
        # Damaged files can contain any byte as a bool, which numpy treats inconsistently.
        raw = mask.view(np.uint8)
        at = first_bad(lambda a, b, raw=raw: any_column(raw[a:b] > 1), count)  # type: ignore[misc]
        if at is not None:
            raise reject(
                source, key, f"the value at row {at} is neither 0 nor 1: the file is damaged: write it again"
            )
        at = first_bad(lambda a, b, mask=mask: any_column(mask[a:b]) & ~is_labelled(labels[a:b]), count)  # type: ignore[misc]
        if at is not None:
            raise reject(source, key, f"vertex {at} is in the split but has no label: set its mask to False")
        for other, earlier in list(zip(keys, masks, strict=True))[:i]:
            at = first_bad(lambda a, b, m=mask, e=earlier: any_column(m[a:b] & e[a:b]), count)  # type: ignore[misc]
            if at is not None:
                column = "" if mask.ndim == 1 else f" of split {int((mask[at] & earlier[at]).argmax())}"
                raise reject(
                    source,
                    key,
                    f"vertex {at}{column} is also in '{other}', but splits are disjoint: set one to False",
                )


def any_column(hits: Array) -> BoolArray:
    flags: BoolArray = hits.astype(np.bool_, copy=False)
    if flags.ndim == 2:
        flags = np.logical_or.reduce(flags, axis=1)
    return flags


def check_finite(source: str, key: str, blocks: Iterable[Array]) -> None:
    """Check that every value is finite; blocks are consecutive rows of a vector or matrix."""
    for _ in finite_blocks(source, key, blocks):
        pass


def finite_blocks(source: str, key: str, blocks: Iterable[Array]) -> Iterator[Array]:
    """Yield the same blocks of consecutive rows after checking that each is finite."""
    row = 0
    for block in blocks:
        finite = np.isfinite(block)
        if not finite.all():
            at = np.unravel_index(int(finite.argmin()), finite.shape)
            place = f"position {row + at[0]}" if block.ndim == 1 else f"row {row + at[0]}, column {at[1]}"
            raise reject(
                source, key, f"value {block[at]} at {place} is not finite: replace it, such as with 0"
            )
        row += len(block)
        yield block


def row_blocks(values: Array, rows: int | None = None) -> Iterator[Array]:
    """Yield consecutive rows of an array in blocks of about `CHUNK` elements."""
    width = max(1, values.shape[1]) if values.ndim == 2 else 1
    step = rows or max(1, CHUNK // width)
    for start in range(0, len(values), step):
        yield values[start : start + step]


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `: did you mean 'x'?` if a known name is similar, otherwise an empty string."""
    near = nearest_name(name, known, cutoff)
    return f": did you mean {near!r}?" if near else ""
