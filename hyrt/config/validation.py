"""Settings sections that are chosen by kind, and the conversion of pydantic's errors to hyrt's messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, get_args

from hyrt_perfmodel.suggestions import nearest_name
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from hyrt.errors import ConfigError, HyrtError
from hyrt.runtime.entry_points import EntryPointGroup
from hyrt.section import Section

RENAMED_SETTINGS = {
    "data.rows": "data.feature_dtype",
    "distributed.wire": "distributed.comm_dtype",
    "distributed.share_rows": "distributed.shared_memory_features",
    "runtime.depth": "runtime.max_in_flight_steps",
}
"""Present names of renamed settings, by former name. Files with former names remain readable."""
LENIENT_CONTEXT = {"foreign keys": "dropped"}
"""Validation context for the settings of an existing run: see `PluginSection`."""


def rename_old_settings(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a nested mapping of settings in which former names are replaced by present names.

    Raises ConfigError if a setting is given under both names with different values.
    """
    renamed = dict(settings)
    for old_name, new_name in RENAMED_SETTINGS.items():
        section, _, old_key = old_name.partition(".")
        values = renamed.get(section)
        if not isinstance(values, Mapping) or old_key not in values:
            continue
        new_key = new_name.removeprefix(f"{section}.")
        if new_key in values and values[new_key] != values[old_key]:
            raise ConfigError(
                f"{old_name} is the former name of {new_name}, and both are set: remove {old_name}"
            )
        renamed[section] = {new_key if key == old_key else key: value for key, value in values.items()}
    return renamed


@dataclass(frozen=True, slots=True)
class PluginSection:
    """Annotation of a field whose section class depends on the kind in the section.

    A key that exists only for another kind is an error, which names this kind. The key is dropped instead if
    it has its default value (earlier versions wrote the keys of all kinds into settings files), and always in
    the settings of an existing run.
    """

    group: EntryPointGroup
    """Entry-point group that declares the kinds."""
    parent: type[Section]
    """Base class of all section classes."""
    default: str
    """Kind that is used if the settings do not name one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, handler(source))

    def sections(self) -> Iterator[tuple[str, type[Section]]]:
        """Yield all kinds that can be loaded, with their section classes."""
        for kind in sorted(self.group.entries_by_name()):
            try:
                yield kind, self.section(kind)
            except HyrtError:
                continue  # A broken kind is reported when it is used.

    def section(self, kind: str) -> type[Section]:
        """Return the section class of a kind. Raises the errors of `EntryPointGroup.load_class`."""
        section = self.group.load_class(kind, self.parent)
        if not section.__pydantic_complete__:
            with self.group.wrap_errors(kind, "reading its fields"):
                section.model_rebuild()
        return section

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        kind = value.get("kind", self.default) if isinstance(value, Mapping) else None
        if isinstance(kind, bytes):
            # Accept YAML's `!!binary` as pydantic does.
            kind = kind.decode(errors="replace")
        if not isinstance(kind, str):
            return value  # The value is already an instance, or pydantic explains the error.
        kind = self.group.canonical_name(kind)
        section = self.section(kind)
        lenient = info.context is LENIENT_CONTEXT
        section_settings = {
            key: item
            for key, item in value.items()
            if not self._is_foreign(section, key, item, kind, lenient)
        }
        return section.model_validate({**section_settings, "kind": kind})

    def _is_foreign(self, section: type[Section], key: str, value: Any, kind: str, lenient: bool) -> bool:
        """Return whether to drop a key of another kind. Raises ConfigError if its value would be ignored."""
        if key in section.model_fields:
            return False
        owners = {
            other: other_section.model_fields[key]
            for other, other_section in self.sections()
            if key in other_section.model_fields
        }
        if owners and not lenient and all(value != field.default for field in owners.values()):
            noun = self.group.noun
            *others, last = owners
            kinds = f"{', '.join(others)} or {last}" if others else last
            raise ConfigError(
                f"{noun.partition('.')[0]}.{key} is a setting of {noun}={kinds}, and has no "
                f"effect with {noun}={kind}: remove it"
            )
        return bool(owners)


# Messages by the types of pydantic's errors. The placeholders are entries of the error's context.
_EXPECTED = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("int_from_float", "int_parsing", "int_parsing_size", "int_type"), "must be an integer"),
    **dict.fromkeys(("string_type", "string_unicode"), "must be a string"),
    "list_type": "must be a list such as [10, 5]",
    "dict_type": "must be a mapping such as {{name: value}}",
    "too_short": "must have at least {min_length} entries",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
# A message shows only the beginning of a value, because a few lines of YAML can define a huge value.
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
            if isinstance(marker, PluginSection):
                for _, section in marker.sections():
                    keys.extend(known_keys(section, f"{path}."))
        # The type of an optional section is a union with None.
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys.extend(known_keys(part, f"{path}."))
    return keys


def explain_error(error: ValidationError, root: type[BaseModel], listing: str) -> str:
    """Return the first problem as a sentence that names the key.

    `root` is the class of all settings, and `listing` the command that lists them.
    """
    first = error.errors()[0]
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        return _unknown_key(".".join(map(str, first["loc"])), root, listing)
    # For a union, pydantic adds the type that it has tried, such as `list[float]`, to the location.
    path = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    if kind == "invalid_key":
        return f"setting {path} has the key {first['loc'][-1]!r}: names of settings must be strings"
    value_text = _SHORT_REPR.repr(value)
    subkeys = (
        [key for key in known_keys(root) if key.startswith(f"{path}.")] if kind in _SECTION_ERRORS else []
    )
    if subkeys:
        example = f"{subkeys[0]}={value if isinstance(value, str) else '...'}"
        return (
            f"setting {path}={value_text} is invalid, because {path} is a section: set its "
            f"settings, such as {example}"
        )
    if kind == "missing":
        return f"setting {path} is missing: add it"
    text = expected_value(first)
    # If a section's own check failed, its message already names the setting.
    names_setting = not path or text.startswith(f"{path}.")
    return text if names_setting else name_value(f"setting {path}={value_text}", text)


def name_value(name: str, problem: str) -> str:
    """Join a name and the problem of its value: `train.lr=0 must be ...`, or `train.lr=0: ...`."""
    return f"{name}{' ' if problem.startswith('must ') else ': '}{problem}"


def expected_value(problem: Mapping[str, Any]) -> str:
    """Return the remedy for a value that pydantic has rejected; `problem` is an item of `error.errors()`."""
    if problem["type"] in _EXPECTED:
        return _EXPECTED[problem["type"]].format(**problem.get("ctx", {}))
    # Messages of hyrt's validators need no conversion.
    return str(problem["msg"]).removeprefix("Value error, ")


def _unknown_key(path: str, root: type[BaseModel], listing: str) -> str:
    known = known_keys(root)
    *sections, last = path.split(".")
    if path in known and sections:
        # The key contains a dot, which is allowed only in command-line overrides.
        nested = "".join(f"{name}: {{" for name in sections) + f"{last}: ..." + "}" * len(sections)
        return f"setting {path!r} contains a dot, which is only allowed on the command line: write {nested}"
    section, _, leaf = path.rpartition(".")
    names = [key.removeprefix(f"{section}.") for key in known if section and key.startswith(f"{section}.")]
    near = next((key for key in known if key.rpartition(".")[2] == leaf), None)
    if near is None and names:
        # Compare without the section's name, which would make all its settings look similar.
        name = nearest_name(leaf, names)
        near = None if name is None else f"{section}.{name}"
    elif near is None:
        near = nearest_name(path, known, 0.5)
    hint = f": did you mean {near!r}?" if near else f": see `{listing}` for all settings"
    return f"unknown setting {path!r}{hint}"


def to_plain_values(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Convert Python settings (numpy or torch numbers, arrays, paths) to the types of a settings file.

    Other values are left to validation. Shared objects are converted only once, because a few lines of YAML
    can repeat one value billions of times. `known` maps the id of an object to its converted value, or to
    `known` itself while the object is being converted. Raises ConfigError if a value contains itself.
    """
    known = {} if known is None else known
    if known.get(id(value)) is known:
        raise ConfigError(
            "a value in the settings contains itself through an anchor (&a, *a): replace the alias (*a)"
        )
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, Mapping | list | tuple):
        known[id(value)] = known
        if isinstance(value, Mapping):
            known[id(value)] = {key: to_plain_values(item, known) for key, item in value.items()}
        else:
            known[id(value)] = [to_plain_values(item, known) for item in value]
        return known[id(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if to_list is not None and hasattr(value, "dtype") else value
