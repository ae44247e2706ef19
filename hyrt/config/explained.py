"""What pydantic refuses, in hyrt's words: the setting, what was given, and what to give."""

from __future__ import annotations

import os
from collections.abc import Mapping
from reprlib import Repr
from typing import Any, get_args

from hyrt_perfmodel.nearest_name import nearest_name
from pydantic import BaseModel, ValidationError

from hyrt.config.by_kind import ByKind
from hyrt.errors import ConfigError

# What pydantic says of a value, by its kinds of errors, in our words; with the error's own figures.
_WANTED = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
    **dict.fromkeys(("float_parsing", "float_type"), "give a number"),
    "finite_number": "give a finite number",
    **dict.fromkeys(("int_from_float", "int_parsing", "int_parsing_size", "int_type"), "give a whole number"),
    **dict.fromkeys(("string_type", "string_unicode"), "give text"),
    "list_type": "give a list, such as [10, 5]",
    "dict_type": "give a mapping, such as {{name: value}}",
    "too_short": "give at least {min_length}",
    "literal_error": "give {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
# Of a value as large as a few lines of YAML can make it, a message shows the beginning.
_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 200
_SHOWN.maxlevel = 2
_SECTION = ("model_type", "model_attributes_type")


def known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    """All settings that a section has, with those of the sections in it."""
    keys = []
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        keys.append(path)
        for marker in field.metadata:
            if isinstance(marker, ByKind):
                for _, section in marker.sections():
                    keys.extend(known_keys(section, f"{path}."))
        # A section that may be left out is a union with None.
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys.extend(known_keys(part, f"{path}."))
    return keys


def explained(error: ValidationError, root: type[BaseModel], listing: str) -> str:
    """The first problem, as a sentence that names the key.

    Parameters
    ----------
    error
        What pydantic refused.
    root
        The class of all settings.
    listing
        The command that lists them.
    """
    first = error.errors()[0]
    kind, given = first["type"], first["input"]
    if kind == "extra_forbidden":
        return _unknown_key(".".join(map(str, first["loc"])), root, listing)
    # Of a value that may be of several kinds, pydantic also names the kind that it tried: `list[float]`.
    path = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    if kind == "invalid_key":
        return f"setting {path}: the name of a setting must be text, not {first['loc'][-1]!r}"
    shown = _SHOWN.repr(given)
    inside = [key for key in known_keys(root) if key.startswith(f"{path}.")] if kind in _SECTION else []
    if inside:
        like = f"{inside[0]}={given if isinstance(given, str) else '...'}"
        return f"setting {path}={shown}: {path} is a section: write the settings in it, such as {like}"
    if kind == "missing":
        return f"setting {path} is missing: give it"
    text = wanted(first)
    return f"setting {path}={shown}: {text}" if path else text


def wanted(problem: Mapping[str, Any]) -> str:
    """What to give in place of a value that pydantic refused; `problem` is one of its error's `errors()`."""
    if problem["type"] in _WANTED:
        return _WANTED[problem["type"]].format(**problem.get("ctx", {}))
    # What hyrt's own validators say is in hyrt's words.
    return str(problem["msg"]).removeprefix("Value error, ")


def _unknown_key(path: str, root: type[BaseModel], listing: str) -> str:
    """Say that a setting is unknown, with the nearest name there is."""
    known = known_keys(root)
    *sections, last = path.split(".")
    if path in known and sections:
        # One key with a point in it, which only arguments may have.
        nested = "".join(f"{name}: {{" for name in sections) + f"{last}: ..." + "}" * len(sections)
        return f"unknown setting {path!r}: in a settings file, a section holds its settings: write {nested}"
    section, _, leaf = path.rpartition(".")
    inside = [key.removeprefix(f"{section}.") for key in known if section and key.startswith(f"{section}.")]
    near = next((key for key in known if key.rpartition(".")[2] == leaf), None)
    if near is None and inside:
        # The section's own name would make all of its settings look alike.
        name = nearest_name(leaf, inside)
        near = None if name is None else f"{section}.{name}"
    elif near is None:
        near = nearest_name(path, known, 0.5)
    hint = f": did you mean {near!r}?" if near else f": `{listing}` lists all settings"
    return f"unknown setting {path!r}{hint}"


def plain(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Settings given in Python as a file would have them: numbers of numpy's or torch's, arrays, paths.

    Anything else is left to whoever reads it. What occurs several times is made once, as a few lines of YAML
    can say a thing a billion times; `known` has what is made of each object, and itself while it is made.

    Raises
    ------
    ConfigError
        If a value holds itself.
    """
    known = {} if known is None else known
    if known.get(id(value)) is known:
        raise ConfigError(
            "the settings have a value that contains itself through an anchor (&a, *a): write the value out"
        )
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, Mapping | list | tuple):
        known[id(value)] = known
        if isinstance(value, Mapping):
            known[id(value)] = {key: plain(each, known) for key, each in value.items()}
        else:
            known[id(value)] = [plain(each, known) for each in value]
        return known[id(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if to_list is not None and hasattr(value, "dtype") else value
