"""Checks of the arguments of the public API, because compiled loops do not check bounds.

Each check reads a header, or the values of one array once. Settings are validated without numpy, which takes
long to import: it is imported only to check arrays, and values that are not Python numbers.
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

_MAX_LETTERS = 40


def show(value: Any) -> str:
    """Return a short description of a value: dtype and shape of an array, the text of a number."""
    if _is_array(value) and len(value.shape):
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = one_line(_show_plain(value))
    if isinstance(value, str) and len(text) > _MAX_LETTERS:
        return f"{text[:_MAX_LETTERS]}..."
    is_short = len(text) <= _MAX_LETTERS and " at 0x" not in text
    return text if is_short else f"of type {type(value).__name__}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _show_plain(value: Any) -> str:
    """Return the text of a value, in which numpy and torch numbers look like Python numbers."""
    if type(value) in (list, tuple) and any(map(_is_array, value)) and len(value) <= _MAX_LETTERS:
        entries = ", ".join(map(show, value))
        return f"[{entries}]" if type(value) is list else f"({entries}{',' * (len(value) == 1)})"
    if type(value) is dict and any(map(_is_array, value.values())) and len(value) <= _MAX_LETTERS:
        return f"{{{', '.join(f'{show(key)}: {show(entry)}' for key, entry in value.items())}}}"
    # Tensors without values (meta or traced tensors) raise several kinds of errors.
    with contextlib.suppress(Exception):
        if _is_array(value):
            item, dtype = value.item(), str(value.dtype)
            if dtype.startswith("datetime64"):
                return str(value)
            if isinstance(item, float) and "float32" in dtype:
                import numpy as np

                return str(np.float32(item))
            if isinstance(item, int | float | complex | str | bytes):
                return repr(item)
    return repr(value)


def check_type(name: str, value: Any, kind: type[Value], remedy: str) -> Value:
    """Return `value` if it is an instance of `kind`; otherwise raise an error with the remedy."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is {show(value)}: {remedy}")
    return value


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} must be one of {', '.join(known)}, got {show(value)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return True or False; reject other values, because a word such as 'no' would count as True."""
    if not isinstance(value, bool) and not _is_numpy_bool(value):
        raise ArgumentError(f"{name} must be True or False, got {show(value)}")
    return bool(value)


def _is_numpy_bool(value: Any) -> bool:
    """Return whether a value is numpy's True or False."""
    import numpy as np

    return isinstance(value, np.bool_)


def check_int(name: str, value: Any, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    """Return an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(f"{name} must be an integer, got {show(value)}")
    number = int(value)
    if not minimum <= number <= maximum:
        bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise ArgumentError(f"{name} must be {bound}, got {show(number)}")
    return number


def check_number(name: str, value: Any, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Return a finite number within bounds."""
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number) or not minimum <= number <= maximum:
        bounds = (
            f" from {minimum:g} to {maximum:g}" if math.isfinite(minimum) and math.isfinite(maximum) else ""
        )
        bounds = bounds or (f" of at least {minimum:g}" if math.isfinite(minimum) else "")
        raise ArgumentError(f"{name} must be a finite number{bounds}, got {show(value)}")
    return number


def check_array(
    name: str, value: Any, dtypes: str | tuple[Any, ...], shape: tuple[int | None, ...], description: str
) -> Array:
    """Return an array that has one of the allowed dtypes and the expected shape.

    `dtypes` are numpy dtype kinds such as `iu`, or dtypes. None in `shape` allows any size. `description`
    describes a valid argument in the message.
    """
    import numpy as np

    is_valid = isinstance(value, np.ndarray) and (
        value.dtype.kind in dtypes if isinstance(dtypes, str) else value.dtype in dtypes
    )
    is_valid = is_valid and value.ndim == len(shape) and value.dtype.isnative
    if not is_valid or any(
        size not in (None, expected) for size, expected in zip(shape, value.shape, strict=True)
    ):
        sizes = ", ".join("n" if size is None else f"{size:,}" for size in shape)
        raise ArgumentError(f"{name} is {show(value)}: pass {description} as a numpy array [{sizes}]")
    array: Array = value
    return array


def check_range(name: str, values: Array, count: int, noun: str) -> None:
    """Check that integers are from 0 to count - 1; the error names the first one that is not."""
    if not len(values) or (values.min() >= 0 and values.max() < count):
        return
    index = int(((values < 0) | (values >= count)).argmax())
    raise ArgumentError(
        f"{name}[{index}] is {values[index]}, but there are only {count:,} {noun}: use "
        f"numbers from 0 to {count - 1:,}"
    )


def check_ids(
    name: str, values: Any, count: int, noun: str = "vertices", *, dtype: Any = None, distinct: bool = False
) -> Array:
    """Return ids [n] of vertices or other items, which compiled loops may then use as indices.

    Each id must be from 0 to count - 1. `noun` names the items in messages. `dtype` is by default that of the
    values, or int64 if it is neither int32 nor int64. If `distinct`, repeated ids are rejected. Raises
    ArgumentError with the argument, the first invalid position and its value.
    """
    import numpy as np

    ids = check_array(name, values, "iu", (None,), f"ids of {noun}")
    check_range(name, ids, count, noun)
    if distinct and len(ids) > 1:
        ordered = np.sort(ids)
        repeats = ordered[1:] == ordered[:-1]
        if repeats.any():
            repeated = ordered[1:][repeats.argmax()]
            raise ArgumentError(f"{name} contains {repeated} twice: list each of the {noun} only once")
    default = ids.dtype if ids.dtype in (np.int32, np.int64) else np.int64
    return np.require(ids, np.dtype(default if dtype is None else dtype), ["C", "W", "E"])


def check_offsets(name: str, values: Any, rows: int, entries: int, dtypes: tuple[Any, ...]) -> Array:
    """Return row offsets [rows + 1], which must start at 0, never decrease, and end at `entries`."""
    offsets = check_array(name, values, dtypes, (rows + 1,), "row offsets")
    if offsets[0] != 0 or offsets[-1] != entries or (offsets[1:] < offsets[:-1]).any():
        raise ArgumentError(
            f"{name} must increase from 0 to {entries:,}, the number of entries: pass valid row offsets"
        )
    return offsets
