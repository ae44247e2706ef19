"""Checks of arguments at the public boundary: compiled loops do not look where they read and write.

Each check looks at a header, or reads the values of one array once. Settings are read without numpy, which
takes long to import: only a check of an array, or of what is not a Python number, imports it.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from hyrt.errors import ArgumentError, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Value = TypeVar("Value")

_SHOWN_LETTERS = 40


def show(value: Any) -> str:
    """Return a value in a few words for a message: an array as its dtype and shape."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = one_line(repr(value))
    if isinstance(value, str) and len(text) > _SHOWN_LETTERS:
        return f"{text[:_SHOWN_LETTERS]}..."
    is_short = len(text) <= _SHOWN_LETTERS and " at 0x" not in text
    return text if is_short else f"of type {type(value).__name__}"


def check_kind(name: str, value: Any, kind: type[Value], remedy: str) -> Value:
    """Return a value that is of a class, or refuse it with a remedy."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is {show(value)}: {remedy}")
    return value


def check_word(name: str, value: Any, words: Iterable[str]) -> str:
    """Return a word that is one of several."""
    known = list(words)
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} is {show(value)}: give one of {', '.join(known)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return True or False; the word 'no' would count as True."""
    if not isinstance(value, bool) and not _is_truth_of_numpy(value):
        raise ArgumentError(f"{name} is {show(value)}: give True or False")
    return bool(value)


def _is_truth_of_numpy(value: Any) -> bool:
    """Return whether a value is numpy's True or False."""
    import numpy as np

    return isinstance(value, np.bool_)


def check_whole(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(f"{name} is {show(value)}: give a whole number")
    number = int(value)
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ArgumentError(f"{name} is {show(number)}: give a whole number of {bound}")
    return number


def check_number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number within bounds."""
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number) or not least <= number <= most:
        bounds = f" from {least:g} to {most:g}" if math.isfinite(least) and math.isfinite(most) else ""
        bounds = bounds or (f" of at least {least:g}" if math.isfinite(least) else "")
        raise ArgumentError(f"{name} is {show(value)}: give a finite number{bounds}")
    return number


def check_array(
    name: str, value: Any, dtypes: str | tuple[Any, ...], shape: tuple[int | None, ...], what: str
) -> Array:
    """Return a numpy array of a dtype and a shape.

    Parameters
    ----------
    name, value
        The argument.
    dtypes
        Kinds of dtypes as numpy has them, such as `iu`; or the dtypes themselves.
    shape
        The entries of each axis; None for any number.
    what
        What to give, for the message.
    """
    import numpy as np

    fits = isinstance(value, np.ndarray) and (
        value.dtype.kind in dtypes if isinstance(dtypes, str) else value.dtype in dtypes
    )
    fits = fits and value.ndim == len(shape) and value.dtype.isnative
    if not fits or any(size not in (None, wanted) for size, wanted in zip(shape, value.shape, strict=True)):
        sizes = ", ".join("n" if size is None else f"{size:,}" for size in shape)
        raise ArgumentError(f"{name} is {show(value)}: give {what} as a numpy array [{sizes}]")
    array: Array = value
    return array


def check_range(name: str, values: Array, count: int, of: str) -> None:
    """Refuse whole numbers that are not from 0 to count - 1, naming the first."""
    if not len(values) or (values.min() >= 0 and values.max() < count):
        return
    at = int(((values < 0) | (values >= count)).argmax())
    raise ArgumentError(
        f"{name}[{at}] is {values[at]}, which is none of the {count:,} {of}: give numbers from 0 to "
        f"{count - 1:,}"
    )


def check_ids(
    name: str, values: Any, count: int, of: str = "vertices", *, dtype: Any = None, distinct: bool = False
) -> Array:
    """Return [n] numbers of vertices, or of other things, that compiled loops may use as places.

    Parameters
    ----------
    name, values
        The argument: an array of whole numbers.
    count
        How many vertices there are: each number is from 0 to count - 1.
    of
        What they are the numbers of, for the message.
    dtype
        The dtype to return; by default that of the values, int64 if it is neither int32 nor int64.
    distinct
        Also refuse a number that is there twice.

    Raises
    ------
    ArgumentError
        Naming the argument, the first bad position and its value.
    """
    import numpy as np

    ids = check_array(name, values, "iu", (None,), f"numbers of {of}")
    check_range(name, ids, count, of)
    if distinct and len(ids) > 1:
        ordered = np.sort(ids)
        repeats = ordered[1:] == ordered[:-1]
        if repeats.any():
            twice = ordered[1:][repeats.argmax()]
            raise ArgumentError(f"{name} has {twice} twice: give each of the {of} once")
    kept = ids.dtype if ids.dtype in (np.int32, np.int64) else np.int64
    return np.require(ids, np.dtype(kept if dtype is None else dtype), ["C", "W", "E"])


def check_offsets(name: str, values: Any, rows: int, entries: int, dtypes: tuple[Any, ...]) -> Array:
    """Return [rows + 1] places where rows begin: from 0, never falling, to the number of entries."""
    offsets = check_array(
        name, values, dtypes, (rows + 1,), "where each row begins, and the end of the last,"
    )
    if offsets[0] != 0 or offsets[-1] != entries or (offsets[1:] < offsets[:-1]).any():
        raise ArgumentError(
            f"{name} does not go up from 0 to {entries:,}, the number of entries: give the places where rows "
            "begin"
        )
    return offsets
