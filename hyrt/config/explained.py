"""Conversion of pydantic's errors to hyrt's messages: setting, value and expected value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from reprlib import Repr
from typing import Any, get_args

from hyrt_perfmodel.nearest_name import nearest_name
from pydantic import BaseModel, ValidationError

from hyrt.config.by_kind import ByKind
from hyrt.errors import ConfigError

# Messages by pydantic's error types; the placeholders are entries of the error's context.
_EXPECTED = {
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
# A few lines of YAML can make a value of any size, so a message shows only its beginning.
_SHORT_REPR = Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = _SHORT_REPR.maxlong = 200
_SHORT_REPR.maxlevel = 2
_SECTION_ERRORS = ("model_type", "model_attributes_type")


def known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Return all settings of a section, including the settings of its subsections."""
    keys = []
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        keys.append(path)
        for marker in field.metadata:
            if isinstance(marker, ByKind):
                for _, section in marker.sections():
                    keys.extend(known_keys(section, f"{path}."))
        # An optional section is a union with None.
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys.extend(known_keys(part, f"{path}."))
    return keys


def explained(error: ValidationError, root: type[BaseModel], listing: str) -> str:
    """Return the first problem as a sentence that names the key.

    Parameters
    ----------
    error
        Pydantic's error.
    root
        Class of all settings.
    listing
        Command that lists the settings.
    """
    first = error.errors()[0]
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        return _unknown_key(".".join(map(str, first["loc"])), root, listing)
    # For a union, pydantic adds the type that it tried, such as `list[float]`, to the location.
    path = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    if kind == "invalid_key":
        return f"setting {path}: the name of a setting must be text, not {first['loc'][-1]!r}"
    value_text = _SHORT_REPR.repr(value)
    subkeys = (
        [key for key in known_keys(root) if key.startswith(f"{path}.")] if kind in _SECTION_ERRORS else []
    )
    if subkeys:
        example = f"{subkeys[0]}={value if isinstance(value, str) else '...'}"
        return (
            f"setting {path}={value_text}: {path} is a section: write the settings in it, such as {example}"
        )
    if kind == "missing":
        return f"setting {path} is missing: give it"
    text = wanted(first)
    return f"setting {path}={value_text}: {text}" if path else text


def wanted(problem: Mapping[str, Any]) -> str:
    """Return the remedy for a value that pydantic refused; `problem` is one of the error's `errors()`."""
    if problem["type"] in _EXPECTED:
        return _EXPECTED[problem["type"]].format(**problem.get("ctx", {}))
    # Messages of hyrt's validators need no conversion.
    return str(problem["msg"]).removeprefix("Value error, ")


def _unknown_key(path: str, root: type[BaseModel], listing: str) -> str:
    """Return a message that a setting is unknown, with the nearest name."""
    known = known_keys(root)
    *sections, last = path.split(".")
    if path in known and sections:
        # One key that contains a point, which only command-line overrides may have.
        nested = "".join(f"{name}: {{" for name in sections) + f"{last}: ..." + "}" * len(sections)
        return f"unknown setting {path!r}: in a settings file, a section holds its settings: write {nested}"
    section, _, leaf = path.rpartition(".")
    names = [key.removeprefix(f"{section}.") for key in known if section and key.startswith(f"{section}.")]
    near = next((key for key in known if key.rpartition(".")[2] == leaf), None)
    if near is None and names:
        # With the section's name, all of its settings would look similar.
        name = nearest_name(leaf, names)
        near = None if name is None else f"{section}.{name}"
    elif near is None:
        near = nearest_name(path, known, 0.5)
    hint = f": did you mean {near!r}?" if near else f": see `{listing}` for all settings"
    return f"unknown setting {path!r}{hint}"


def plain(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Convert settings given in Python to the types of a file: numpy or torch numbers, arrays, paths.

    Other values are left to the validation. Shared objects are converted only once, because a few lines of
    YAML can repeat one value billions of times. `known` maps the id of an object to its converted value, or
    to `known` itself while the object is being converted.

    Raises
    ------
    ConfigError
        If a value contains itself.
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
            known[id(value)] = {key: plain(item, known) for key, item in value.items()}
        else:
            known[id(value)] = [plain(item, known) for item in value]
        return known[id(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if to_list is not None and hasattr(value, "dtype") else value
