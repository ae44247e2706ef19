"""Values from YAML, with errors that say where and what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets the last of two equal keys win, and so hides what was meant by the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {twice!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Raises
    ------
    ValueError
        If it cannot be read, or holds something else; with its name.
    """
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
    """The value, if it is a mapping with text for keys.

    Raises
    ------
    ValueError
        Otherwise.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: expected a mapping (key: value), found {_shown(value)}")
    return value


def only_keys(
    content: Mapping[str, Any], known: Collection[str], required: Collection[str], where: str
) -> None:
    """Demand that every key is known and every required one there.

    Raises
    ------
    ValueError
        Naming the key, and the nearest one there is.
    """
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the known keys are {', '.join(sorted(known))}"
            raise ValueError(f"{where}: unknown key {key!r}: {hint}")
    for key in required:
        if key not in content:
            raise ValueError(f"{where}: the key {key!r} is missing")


def number(value: Any, where: str) -> float:
    """A finite number, also written like 1e9, which YAML takes for text.

    Raises
    ------
    ValueError
        For anything else.
    """
    found = number_or_infinity(value, where)
    if math.isinf(found):
        raise ValueError(f"{where} is {_shown(value)}: give a finite number")
    return found


def number_or_infinity(value: Any, where: str) -> float:
    """A number, or .inf.

    Raises
    ------
    ValueError
        For anything else.
    """
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
    """A whole number.

    Raises
    ------
    ValueError
        For anything else.
    """
    found = number(value, where)
    if not found.is_integer():
        raise ValueError(f"{where} is {_shown(value)}: give a whole number")
    return int(found)


def truth(value: Any, where: str) -> bool:
    """True or false.

    Raises
    ------
    ValueError
        For anything else.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {_shown(value)}: give true or false")
    return value


def listed(value: Any, where: str) -> list[Any]:
    """A list.

    Raises
    ------
    ValueError
        For anything else.
    """
    if not isinstance(value, list):
        raise ValueError(f"{where} is {_shown(value)}: give a list")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"  # Which Python may refuse to print.
    text = repr(value)
    return "nothing" if value is None else text if len(text) < 60 else f"{text[:57]}..."
