"""Values from YAML, with errors that say where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml


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
        raise ValueError(f"{path}: is not text in UTF-8") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    return mapping(content, str(path))


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it is a mapping with text for keys.

    Raises
    ------
    ValueError
        Otherwise.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: holds {_shown(value)}: give a mapping, key: value")
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
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"{where}: unknown key {key!r}: {hint}")
    for key in required:
        if key not in content:
            raise ValueError(f"{where}: the key {key!r} is missing")


def number(value: Any, where: str) -> float:
    """A number, also written like 1e9, which YAML takes for text.

    Raises
    ------
    ValueError
        For anything else.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"{where} is {_shown(value)}: give a number")
    return value


def whole(value: Any, where: str) -> int:
    """A whole number.

    Raises
    ------
    ValueError
        For anything else.
    """
    found = number(value, where)
    if found != found // 1 or abs(found) == float("inf"):
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
    text = repr(value)
    return "nothing" if value is None else text if len(text) < 60 else f"{text[:57]}..."
