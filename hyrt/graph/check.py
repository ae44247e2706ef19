"""Checks of dataset arrays in chunks, and conversion of labels from other libraries. Errors give the key and
the position of the first violation.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from hyrt_perfmodel.suggestions import nearest_name
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.labels import get_label_kind, is_labelled

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]

CHUNK = 1 << 20
MAX_EDGE_TYPES = 1 << 24
"""Maximum number of edge types, because float32 represents only smaller integers exactly."""


_INDPTR = "compute it as numpy.concatenate([[0], numpy.cumsum(lengths)]) from the row lengths"


def reject(source: str, key: str, problem: str) -> DataError:
    """Return the error for a key of a dataset. If the problem begins with "has" or "is", there is no colon
    after the key.
    """
    colon = "" if problem.startswith(("has ", "is ")) else ":"
    return DataError(f"{source}: key '{key}'{colon} {problem}")


def find_first_violation(bad: Callable[[int, int], BoolArray], count: int) -> int | None:
    """Return the first position at which `bad(start, stop)` is True; None if there is none."""
    for start in range(0, count, CHUNK):
        hits = bad(start, min(start + CHUNK, count))
        if hits.any():
            return start + int(hits.argmax())
    return None


def check_indptr(source: str, key: str, indptr: Array, num_entries: int, entries: str) -> None:
    """Check that a row pointer starts at 0, never decreases and ends at the number of entries."""
    if len(indptr) == 0:
        raise reject(
            source, key, f"is empty, but must have one entry more than there are vertices: {_INDPTR}"
        )
    if indptr[0] != 0:
        raise reject(
            source, key, f"value {indptr[0]} at position 0 must be 0, the start of the first row: {_INDPTR}"
        )
    at = find_first_violation(lambda a, b: indptr[a + 1 : b + 1] < indptr[a:b], len(indptr) - 1)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {indptr[at + 1]} at position {at + 1} is less than the previous value, {indptr[at]}: "
            f"{_INDPTR}",
        )
    if indptr[-1] != num_entries:
        raise reject(
            source,
            key,
            f"value {indptr[-1]} at position {len(indptr) - 1} differs from the length of '{entries}', "
            f"{num_entries:,}: {_INDPTR}",
        )


def check_columns(
    source: str,
    key: str,
    columns: Array,
    indptr: Array,
    bound: int,
    item_name: str,
    *,
    ordered: bool = True,
    dataset: str | None = None,
) -> None:
    """Check that CSR entries are in 0..bound-1 and, if `ordered`, strictly increasing in each row.

    `dataset` is the path in the convert command that the error suggests, by default `source`.
    """

    def outside(a: int, b: int) -> BoolArray:
        part = columns[a:b]
        return (part < 0) | (part >= bound)

    def unsorted(a: int, b: int) -> BoolArray:
        # Compare each position with the previous one, unless a row begins there.
        low = max(a, 1)
        bad = np.zeros(b - a, np.bool_)
        bad[low - a :] = columns[low:b] <= columns[low - 1 : b - 1]
        first, last = np.searchsorted(indptr, [a, b])
        bad[indptr[first:last] - a] = False
        return bad

    at = find_first_violation(outside, len(columns))
    disorder = find_first_violation(unsorted, len(columns) if at is None else at) if ordered else None
    if disorder is not None:
        row = int(np.searchsorted(indptr, disorder, side="right")) - 1
        pair = "repeats" if columns[disorder] == columns[disorder - 1] else "is less than"
        raise reject(
            source,
            key,
            f"value {columns[disorder]} at position {disorder} {pair} the previous one in row {row}, but "
            "rows must be strictly increasing: sort them with hyrt data convert "
            f"{shlex.quote(dataset or source)} DESTINATION --sort --unique",
        )
    if at is not None:
        value = columns[at]
        if value < 0:
            raise reject(
                source, key, f"value {value} at position {at} is negative: number the {item_name} from 0"
            )
        raise reject(
            source,
            key,
            f"value {value} at position {at} is out of range for {bound:,} {item_name}: number them from 0",
        )


def check_edge_types(source: str, key: str, types: Array, num_edges: int) -> None:
    """Check that there is one type per edge, within the integers that float32 represents exactly."""
    if len(types) != num_edges:
        raise reject(
            source, key, f"has {len(types):,} entries for {num_edges:,} edges: use one entry per edge"
        )
    at = find_first_violation(lambda a, b: (types[a:b] < 0) | (types[a:b] >= MAX_EDGE_TYPES), num_edges)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {types[at]} at position {at} must be from 0 to {MAX_EDGE_TYPES - 1:,}: number the types "
            "from 0",
        )


def check_edge_weights(source: str, key: str, weights: Array, num_edges: int) -> None:
    """Check that there is one finite positive weight per edge."""
    if len(weights) != num_edges:
        raise reject(
            source, key, f"has {len(weights):,} entries for {num_edges:,} edges: use one entry per edge"
        )
    at = find_first_violation(lambda a, b: ~(np.isfinite(weights[a:b]) & (weights[a:b] > 0)), num_edges)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {weights[at]} at position {at} must be a finite number above 0: replace it, or remove "
            "the edge",
        )


def check_edge_features(source: str, key: str, rows: Array, num_edges: int) -> None:
    """Check that there is one row of finite numbers per edge."""
    if len(rows) != num_edges:
        raise reject(source, key, f"has {len(rows):,} rows for {num_edges:,} edges: use one row per edge")
    if rows.shape[1] == 0:
        raise reject(source, key, "has no columns: add at least one, or remove the key")
    check_finite(source, key, iter_row_blocks(rows))


def check_edge_times(source: str, key: str, times: Array, num_edges: int) -> None:
    """Check that there is one time per edge; NaN stands for an unknown time."""
    if len(times) != num_edges:
        raise reject(
            source, key, f"has {len(times):,} entries for {num_edges:,} edges: use one entry per edge"
        )


def check_permutation(source: str, key: str, numbers: Array, count: int) -> None:
    """Check that vertex indices are a permutation of 0..count-1."""
    if len(numbers) != count:
        raise reject(source, key, f"has {len(numbers):,} rows for {count:,} vertices: use one row per vertex")
    at = find_first_violation(lambda a, b: (numbers[a:b] < 0) | (numbers[a:b] >= count), count)
    if at is not None:
        raise reject(
            source,
            key,
            f"value {numbers[at]} at position {at} is not one of the {count:,} vertices: number them from 0",
        )
    seen = np.zeros(count, np.bool_)
    seen[numbers] = True
    if not seen.all():
        raise reject(
            source,
            key,
            f"has another vertex twice instead of vertex {int(seen.argmin())}: list the original number of "
            "each vertex once",
        )


def check_masks(
    source: str, keys: tuple[str, str, str], masks: tuple[Array, Array, Array], labels: Array
) -> None:
    """Check that the masks of a split have equal shapes, are disjoint, and contain only labelled vertices."""
    count = len(labels)
    for key, mask in zip(keys, masks, strict=True):
        if len(mask) != count:
            raise reject(
                source,
                key,
                f"has {len(mask):,} rows for {count:,} vertices: set True or False for each vertex",
            )
        if mask.shape != masks[0].shape:
            raise reject(
                source,
                key,
                f"has shape {list(mask.shape)}, but '{keys[0]}' has {list(masks[0].shape)}: use the same "
                "shape for all masks",
            )
        if mask.ndim == 2 and mask.shape[1] == 0:
            raise reject(
                source, key, f"has shape {list(mask.shape)} and thus no split: add at least one column"
            )
    for i, (key, mask) in enumerate(zip(keys, masks, strict=True)):
        # In a damaged file, a bool can be any byte, and numpy treats such bytes inconsistently.
        raw = mask.view(np.uint8)
        at = find_first_violation(lambda a, b, raw=raw: reduce_columns(raw[a:b] > 1), count)  # type: ignore[misc]
        if at is not None:
            raise reject(
                source,
                key,
                f"the value at row {at} is neither 0 nor 1, so the file is damaged: write it again",
            )
        at = find_first_violation(
            lambda a, b, mask=mask: reduce_columns(mask[a:b]) & ~is_labelled(labels[a:b]),  # type: ignore[misc]
            count,
        )
        if at is not None:
            raise reject(source, key, f"vertex {at} is in the split but has no label: set its mask to False")
        for other, earlier in list(zip(keys, masks, strict=True))[:i]:
            at = find_first_violation(lambda a, b, m=mask, e=earlier: reduce_columns(m[a:b] & e[a:b]), count)  # type: ignore[misc]
            if at is not None:
                column = "" if mask.ndim == 1 else f" of split {int((mask[at] & earlier[at]).argmax())}"
                raise reject(
                    source,
                    key,
                    f"vertex {at}{column} is also in '{other}', but splits must be disjoint: set one of the "
                    "masks to False",
                )


def reduce_columns(hits: Array) -> BoolArray:
    flags: BoolArray = hits.astype(np.bool_, copy=False)
    if flags.ndim == 2:
        flags = np.logical_or.reduce(flags, axis=1)
    return flags


def check_finite(source: str, key: str, blocks: Iterable[Array]) -> None:
    """Check that all values are finite; `blocks` are consecutive rows of a vector or matrix."""
    for _ in iter_finite_blocks(source, key, blocks):
        pass


def iter_finite_blocks(source: str, key: str, blocks: Iterable[Array]) -> Iterator[Array]:
    """Yield consecutive blocks of rows unchanged, after checking that their values are finite."""
    row = 0
    for block in blocks:
        finite = np.isfinite(block)
        if not finite.all():
            at = np.unravel_index(int(finite.argmin()), finite.shape)
            place = f"position {row + at[0]}" if block.ndim == 1 else f"row {row + at[0]}, column {at[1]}"
            raise reject(
                source, key, f"value {block[at]} at {place} is not finite: replace it, for example with 0"
            )
        row += len(block)
        yield block


def iter_row_blocks(values: Array, rows: int | None = None) -> Iterator[Array]:
    """Yield consecutive rows of an array as blocks with about `CHUNK` elements."""
    width = max(1, values.shape[1]) if values.ndim == 2 else 1
    step = rows or max(1, CHUNK // width)
    for start in range(0, len(values), step):
        yield values[start : start + step]


def suggest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `: did you mean 'x'?` if a known name is similar, otherwise an empty string."""
    near = nearest_name(name, known, cutoff)
    return f": did you mean {near!r}?" if near else ""


MAX_CLASSES = 1 << 20


def check_labels(source: str, labels: Array) -> None:
    """Check that labels are classes, flags of 0 and 1 (both -1 if unknown), or numbers (NaN if unknown)."""
    kind = get_label_kind(labels)
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise reject(
            source, "labels", f"has shape {list(labels.shape)} and thus no label: add at least one column"
        )
    if kind == "classes":
        _check_classes(source, labels)
        return
    is_wrong = np.isinf if kind == "numbers" else _is_no_flag
    at = find_first_violation(lambda a, b: reduce_columns(is_wrong(labels[a:b])), len(labels))
    if at is None:
        return
    if labels.ndim == 1:
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is not finite: replace it (nan means no label)",
        )
    column = int(is_wrong(labels[at]).argmax())
    expected = "finite (nan means unknown)" if kind == "numbers" else "0 or 1 (-1 means unknown)"
    raise reject(
        source,
        "labels",
        f"value {labels[at, column]} at row {at}, column {column} is not {expected}: replace it",
    )


def _is_no_flag(part: Array) -> BoolArray:
    # In a damaged file, a bool can be any byte.
    values = part.view(np.uint8) if part.dtype == np.bool_ else part
    wrong: BoolArray = (values != 0) & (values != 1)
    return wrong if values.dtype.kind == "u" else wrong & (values != -1)


def _check_classes(source: str, labels: Array) -> None:
    at = find_first_violation(lambda a, b: labels[a:b] < -1, len(labels))
    if at is not None:
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is below -1: number classes from 0, and use -1 for no "
            "label",
        )
    at = find_first_violation(lambda a, b: labels[a:b] >= MAX_CLASSES, len(labels))
    if at is not None:
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} must be below {MAX_CLASSES:,}: number the classes from 0",
        )


def check_all_classes(source: str, labels: Array) -> None:
    """Raise DataError if a class below the highest one has no vertex, because training requires all classes.
    Other kinds of labels are ignored.
    """
    if get_label_kind(labels) != "classes" or not len(labels):
        return
    highest = int(labels.max())
    # If there are fewer labels than classes, one is missing. Never allocate a size that is read from a file.
    size = min(highest, len(labels)) + 1
    seen = np.zeros(size + 1, np.bool_)
    for start in range(0, len(labels), CHUNK):
        part = labels[start : start + CHUNK]
        # `size` may exceed the range of the labels' dtype by one.
        seen[np.minimum(part[part >= 0].astype(np.int64), size)] = True
    missing = int(np.argmin(seen[:size])) if not seen[:size].all() else size
    if missing <= highest:
        at = find_first_violation(lambda a, b: labels[a:b] > missing, len(labels))
        assert at is not None
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is out of range, because no vertex has class {missing}: "
            "number the classes from 0 to C-1 without gaps",
        )


def convert_targets(values: Array, source: str, key: str) -> Array:
    """Convert labels of another library to the dtype that hyrt uses for their kind.

    Integers [V] are classes. [V, K] with only 0, 1 and NaN (or -1) are flags. All other floats are numbers,
    even if they are whole. Raises DataError for other integers [V, K].
    """
    is_float = values.dtype.kind == "f"
    known = values[~np.isnan(values)] if is_float else values
    if values.ndim == 2:
        if ((known == 0) | (known == 1) | (known == -1)).all():
            return (
                np.where(np.isnan(values), -1, values).astype(np.int8) if is_float else values.astype(np.int8)
            )
        if not is_float:
            raise reject(
                source,
                key,
                "has integers [V, K] other than 0 and 1: convert them to floats to train on numbers",
            )
        return values.astype(np.float32)
    if is_float:
        return values.astype(np.float32)
    return convert_classes(values, source, key)


def convert_classes(values: Array, source: str, key: str) -> Array:
    """Convert classes to the smallest sufficient dtype out of int16, int32 and int64. NaN becomes -1. Raises
    DataError if a value is not a whole number.
    """
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        whole = np.where(missing, -1, values)
        odd = (whole != np.floor(whole)) | np.isinf(whole)
        if odd.any():
            at = int(odd.argmax())
            raise reject(
                source,
                key,
                f"value {values[at]} at position {at} is not a class: use integers, starting at 0",
            )
    else:
        whole = values
    highest = int(whole.max()) if len(whole) else 0
    lowest = int(whole.min()) if len(whole) else 0
    for dtype in (np.int16, np.int32):
        if np.iinfo(dtype).min <= lowest and highest <= np.iinfo(dtype).max:
            return whole.astype(dtype)
    return whole.astype(np.int64)
