"""Settings and import schemas as editable YAML files, in which comments explain each setting."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hyrt.config.load import TextYaml, format_setting, load_settings
from hyrt.config.settings import Config
from hyrt.config.validation import explain_error
from hyrt.errors import ConfigError
from hyrt.graph.tables.schema import HeteroImportSchema, ImportSchema
from hyrt.nn.models.model_kind import find_model

_WIDTH = 100


def commented_yaml(config: Config, shown: Collection[str]) -> str:
    """Return all settings with explanations; settings at their defaults are commented out.

    `shown` are keys, such as `train.lr`, that are never commented out. `hyrt run FILE` reads the text as an
    equal config, whichever settings are commented out.
    """
    sections = [name for name in Config.model_fields if isinstance(getattr(config, name), BaseModel)]
    plain = [name for name in Config.model_fields if name not in sections]
    # Never comment out settings whose default depends on the model kind: a comment would mean this default.
    shown = {*shown, *find_model(config.model.kind).defaults}
    lines = list(_settings(config, plain, "", "", shown, {}))
    for name in sections:
        section = getattr(config, name)
        body = list(
            _settings(
                section,
                list(type(section).model_fields),
                f"{name}.",
                "  ",
                shown,
                _declared_defaults(section),
            )
        )
        is_empty = all(line.lstrip().startswith("#") or not line for line in body)
        # Comment out a section without settings: an empty key would be null instead of a mapping.
        lines += ["", f"# {name}:" if is_empty else f"{name}:", *body]
    return "\n".join(lines) + "\n"


def commented_section(section: BaseModel, indent: str = "") -> Iterator[str]:
    """Yield the lines of a section and its subsections, with explanations; unset settings are commented out.

    Settings that were passed to the section's constructor count as set. `indent` is the prefix of each line.
    """
    for name in type(section).model_fields:
        value = getattr(section, name)
        if not isinstance(value, BaseModel):
            yield from _settings(
                section, [name], "", indent, section.model_fields_set, _declared_defaults(section)
            )
            continue
        body = list(commented_section(value, f"{indent}  "))
        is_empty = all(line.lstrip().startswith("#") or not line for line in body)
        yield from ("", f"{indent}{'# ' * is_empty}{name}:")
        yield from body


def _declared_defaults(section: BaseModel) -> dict[str, Any]:
    return {name: field.default for name, field in type(section).model_fields.items()}


def _settings(
    section: BaseModel,
    names: Collection[str],
    prefix: str,
    indent: str,
    shown: Collection[str],
    defaults: Mapping[str, Any],
) -> Iterator[str]:
    values = section.model_dump()
    for name in names:
        field = type(section).model_fields[name]
        meaning = " ".join((field.description or "").split())
        # Do not break a setting such as int8-columns at its hyphen.
        yield from textwrap.wrap(
            meaning,
            _WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_on_hyphens=False,
        )
        is_shown = f"{prefix}{name}" in shown or values[name] != defaults.get(name, field.default)
        yield f"{indent}{'' if is_shown else '# '}{format_setting(name, values[name])}"


_LISTING = "hyrt data import --print-schema FILES"


def read_schema(path: Path) -> ImportSchema | HeteroImportSchema:
    """Read a schema; a schema with `relations` describes a heterogeneous graph."""
    # Read values as text, because column names and missing values may be no, on or 007.
    settings = load_settings(path, TextYaml)
    kind: type[ImportSchema | HeteroImportSchema] = ImportSchema
    if "relations" in settings:
        kind = HeteroImportSchema
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain_error(error, kind, _LISTING)}") from None


def schema_text(schema: ImportSchema) -> str:
    """Return the YAML text of a schema with explanations; unset settings are commented out."""
    return "\n".join(commented_section(schema)) + "\n"
