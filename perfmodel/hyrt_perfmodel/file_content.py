"""Values from YAML, with errors that say where and what to do.

Every function raises ValueError for what is not as it says, with the value's place (`where`) and what to
give instead.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets the last of two equal keys win, and so hides what was meant by the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {twice!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text") from error
    try:
        content = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except (RecursionError, ValueError, OverflowError) as error:
        # What is nested too deep, or a date or a number that cannot be.
        raise ValueError(f"{path}: not readable as YAML: {error}") from error
    return mapping(content, str(path))


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it is a mapping with text for keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: expected a mapping (key: value), found {_shown(value)}")
    return value


def only_keys(
    content: Mapping[str, Any], known: Collection[str], required: Collection[str], where: str
) -> None:
    """Demand that every key is known and every required one there."""
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the known keys are {', '.join(sorted(known))}"
            raise ValueError(f"{where}: unknown key {key!r}: {hint}")
    for key in required:
        if key not in content:
            raise ValueError(f"{where}: the key {key!r} is missing")


def number(value: Any, where: str) -> float:
    """A finite number, also written like 1e9, which YAML takes for text."""
    found = number_or_infinity(value, where)
    if math.isinf(found):
        raise ValueError(f"{where} is {_shown(value)}: give a finite number")
    return found


def number_or_infinity(value: Any, where: str) -> float:
    """A number, or .inf."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{where} is {_shown(value)}: give a number")
    try:
        found = float(value)
    except (ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"{where} is {_shown(value)}: give a number")
    return found


def whole(value: Any, where: str) -> int:
    """A whole number."""
    found = number(value, where)
    if not found.is_integer():
        raise ValueError(f"{where} is {_shown(value)}: give a whole number")
    return int(found)


def truth(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {_shown(value)}: give true or false")
    return value


def text(value: Any, where: str) -> str:
    """A name."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where} is {_shown(value)}: give a name")
    return value


def listed(value: Any, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{where} is {_shown(value)}: give a list")
    return value


def made_of(
    kind: type[T], content: Any, where: str, *, required: Collection[str] = (), infinite: bool = False
) -> T:
    """A dataclass from a mapping of its fields; values are read as the fields' annotations say.

    Parameters
    ----------
    kind
        The dataclass.
    content
        The mapping. Fields with a default may be missing.
    where
        The mapping's place, for messages.
    required
        Fields that may not be missing although they have a default.
    infinite
        Whether every number may be infinite, and not only those that their annotation allows it.
    """
    content = mapping(content, where)
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
    hints = get_type_hints(kind, include_extras=True)
    only_keys(content, hints.keys(), [*needed, *required], where)
    values = {key: _read(hints[key], value, _place(where, key), infinite) for key, value in content.items()}
    try:
        return kind(**values)
    except ValueError as problem:
        raise ValueError(within(str(problem), where)) from problem


def _place(where: str, key: str) -> str:
    """A key's place: `file: key` at the top, `file: key.key` below."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


def within(message: str, where: str) -> str:
    """The message with its place, once."""
    return message if message.startswith(where) else f"{where}: {message}"


def _read(hint: Any, value: Any, where: str, infinite: bool) -> Any:
    """The value as an annotation says."""
    origin, parts = get_origin(hint), get_args(hint)
    if type(None) in parts:
        return None if value is None else _read(parts[0], value, where, infinite)
    if origin is Annotated:
        unbounded = infinite or "a file may say .inf" in hint.__metadata__
        return _read(parts[0], value, where, unbounded)
    if origin is Literal:
        if value not in parts:
            raise ValueError(f"{where} is {_shown(value)}: give one of {', '.join(parts)}")
        return value
    if origin in (tuple, frozenset):
        entries = listed(value, where)
        return origin(_read(parts[0], each, f"{where}[{i}]", infinite) for i, each in enumerate(entries))
    if origin is Mapping:
        keyed = mapping(value, where)
        return {key: _read(parts[1], each, f"{where}.{key}", infinite) for key, each in keyed.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return made_of(hint, value, where, infinite=infinite)
    if hint is float:
        return number_or_infinity(value, where) if infinite else number(value, where)
    readers: dict[Any, Callable[[Any, str], Any]] = {int: whole, bool: truth, str: text}
    return "" if hint is str and value == "" else readers[hint](value, where)


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"  # Which Python may refuse to print.
    text = repr(value)
    return "nothing" if value is None else text if len(text) < 60 else f"{text[:57]}..."
