"""Valid and invalid values for arguments of the public API, and arrays next to unreadable memory."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_live_arrays: list[Any] = []


@dataclass(frozen=True)
class Drawn:
    """A value for one argument."""

    value: Any
    words: str
    is_wrong: bool = False
    """Whether the call must reject it."""


def guarded(array: Any) -> Any:
    """Return a copy that ends at an unreadable page: a loop that reads beyond it crashes the process."""
    if not isinstance(array, np.ndarray) or not array.nbytes or array.dtype.hasobject:
        return array
    pages = -(-array.nbytes // _PAGE)
    memory = mmap.mmap(-1, (pages + 1) * _PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(start + pages * _PAGE), _PAGE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    _live_arrays.append(memory)
    copy = np.frombuffer(memory, array.dtype, array.size, pages * _PAGE - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy


class Strange:
    """An object that is not a valid argument of anything."""


OBJECTS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("None", lambda: None),
    ("''", lambda: ""),
    ("'no'", lambda: "no"),
    ("two lines", lambda: "a\nb"),
    ("'\\0'", lambda: "\0"),
    ("bytes", lambda: b"x"),
    ("3.5", lambda: 3.5),
    ("-1", lambda: -1),
    ("2**70", lambda: 2**70),
    ("True", lambda: True),
    ("nan", lambda: float("nan")),
    ("inf", lambda: float("inf")),
    ("1j", lambda: 1j),
    ("[]", list),
    ("['a']", lambda: ["a"]),
    ("{}", dict),
    ("an object", Strange),
    ("a class", lambda: Strange),
    ("a function", lambda: print),
    ("an array of objects", lambda: np.array([None, "a"], object)),
    ("an array of texts", lambda: np.array(["a", "b"])),
    ("an array without axes", lambda: np.array(3)),
)


class Kind:
    """A kind of argument.

    Parameters
    ----------
    right
        Makes a valid value.
    also
        Further valid values, by description; rejecting them is allowed.
    wrong
        Values that must be rejected, by description.
    optional
        Whether the argument may be omitted.
    """

    def __init__(
        self,
        right: Callable[[], Any],
        *,
        also: Sequence[tuple[str, Callable[[], Any]]] = (),
        wrong: Sequence[tuple[str, Callable[[], Any]]] = (),
        optional: bool = False,
        harmless: Sequence[str] = (),
    ) -> None:
        self.right = right
        self.optional = optional
        self._also, self._wrong, self._harmless = list(also), list(wrong), set(harmless)

    def draw_right(self, draw: random.Random) -> Drawn:
        """Choose a valid value."""
        if self._also and draw.random() < 0.5:
            words, make = draw.choice(self._also)
            return Drawn(make(), words)
        return Drawn(self.right(), "right")

    def draw_wrong(self, draw: random.Random) -> Drawn:
        """Choose a value that is usually invalid."""
        if self._wrong and draw.random() < 0.6:
            words, make = draw.choice(self._wrong)
            return Drawn(make(), words, is_wrong=True)
        words, make = draw.choice(OBJECTS)
        is_refused = words in ("an object", "a class") and words not in self._harmless
        return Drawn(make(), words, is_wrong=is_refused)


class Arrays(Kind):
    """An array argument.

    Parameters
    ----------
    right
        Makes a valid array or tensor.
    bound
        Upper bound of index values, such as the number of vertices.
    distinct
        Whether index values must be unique.
    any_length
        Whether the first axis may have another length.
    """

    def __init__(
        self,
        right: Callable[[], Any],
        *,
        bound: int | None = None,
        distinct: bool = False,
        any_length: bool = False,
        any_axes: bool = False,
        optional: bool = False,
    ) -> None:
        super().__init__(right, optional=optional)
        self._bound, self._distinct = bound, distinct
        self._any_length, self._any_axes = any_length, any_axes

    def draw_right(self, draw: random.Random) -> Drawn:
        value = self.right()
        if isinstance(value, torch.Tensor):
            return Drawn(value, "right")
        words = draw.choice(("right", "right", "guarded", "guarded", "read-only", "strided", "fortran"))
        return Drawn(_laid_out(value, words), words)

    def draw_wrong(self, draw: random.Random) -> Drawn:
        kind = draw.choice(("type", "dtype", "shape", "shape", "values", "values"))
        if kind == "type":
            words, make = draw.choice(OBJECTS)
            return Drawn(make(), words, is_wrong=words in ("an object", "a class", "1j", "a function"))
        value = self.right()
        is_tensor = isinstance(value, torch.Tensor)
        array = value.detach().numpy() if is_tensor else value
        changed, words, is_wrong = getattr(self, f"_{kind}")(array.copy(), draw)
        if is_tensor and changed.dtype.kind in "biufc" and changed.dtype.isnative:
            return Drawn(torch.from_numpy(np.ascontiguousarray(changed)), f"tensor, {words}", is_wrong)
        return Drawn(guarded(changed), words, is_wrong)

    def _dtype(self, array: Any, draw: random.Random) -> tuple[Any, str, bool]:
        names = (
            "float64",
            "float16",
            "int8",
            "uint8",
            "uint64",
            "bool",
            "complex64",
            "object",
            "U4",
            ">i4",
            ">f4",
        )
        name = draw.choice(names)
        with np.errstate(all="ignore"):
            return array.astype(name), name, name in ("complex64", "U4", "object")

    def _shape(self, array: Any, draw: random.Random) -> tuple[Any, str, bool]:
        words = draw.choice(
            ("one more", "one fewer", "none", "another axis", "no axis", "transposed", "twice")
        )
        strict = not self._any_length
        match words:
            case "one more":
                return np.concatenate([array, array[:1]]), words, strict and len(array) > 0
            case "one fewer":
                return array[:-1], words, strict and len(array) > 0
            case "twice":
                return np.concatenate([array, array]), words, strict and len(array) > 0
            case "none":
                return array[:0], words, strict and len(array) > 0
            case "another axis":
                return array[..., None], words, not self._any_axes
            case "no axis":
                return array.reshape(-1)[:1].reshape(()), words, True
            case _:
                is_other = array.ndim > 1 and array.shape[0] != array.shape[-1]
                return np.ascontiguousarray(array.T), words, strict and is_other

    def _values(self, array: Any, draw: random.Random) -> tuple[Any, str, bool]:
        if not array.size:
            return array, "right", False
        position = tuple(draw.randrange(size) for size in array.shape)
        if array.dtype.kind == "f":
            bad = draw.choice((np.nan, np.inf, -np.inf, -1.0, 1e30))
            array[position] = bad
            return array, f"{bad} at {position}", False
        if array.dtype.kind == "b":
            return ~array, "negated", False
        if self._distinct and array.ndim == 1 and len(array) > 1 and draw.random() < 0.3:
            array[0] = array[-1]
            return array, "repeated", True
        wide = array.astype(np.int64) if draw.random() < 0.4 else array
        minimum, maximum = np.iinfo(wide.dtype).min, np.iinfo(wide.dtype).max
        bad = draw.choice(
            (-1, -5, max(-(2**31), minimum), self._bound or maximum, maximum, min(2**31, maximum))
        )
        wide[position] = bad
        return (
            wide,
            f"{bad} at {position} as {wide.dtype}",
            self._bound is not None and not 0 <= bad < self._bound,
        )


def _laid_out(array: Any, words: str) -> Any:
    match words:
        case "guarded":
            return guarded(array)
        case "read-only":
            copy = array.copy()
            copy.flags.writeable = False
            return copy
        case "strided" if array.ndim:
            wide = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
            wide[::2] = array
            return wide[::2]
        case "fortran":
            return np.asfortranarray(array)
    return array


def words_of(known: Sequence[str], *, optional: bool = False) -> Kind:
    """Return the kind of an argument with several allowed words."""
    return Kind(
        lambda: known[0],
        also=[(word, lambda word=word: word) for word in known],
        wrong=[("'sideways'", lambda: "sideways"), ("an array", lambda: np.arange(3))],
        optional=optional,
    )


def whole(right: int, *, wrong: Sequence[Any] = (-1, 3.5, "3", None), optional: bool = False) -> Kind:
    """Return the kind of an integer argument."""
    return Kind(lambda: right, wrong=[(repr(bad), lambda bad=bad: bad) for bad in wrong], optional=optional)


def flag(*, optional: bool = True) -> Kind:
    """Return the kind of a boolean argument."""
    return Kind(
        lambda: False,
        also=[("True", lambda: True)],
        wrong=[("'no'", lambda: "no"), ("3", lambda: 3), ("an array", lambda: np.arange(2))],
        optional=optional,
    )
