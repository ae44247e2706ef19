"""The schema of an import as a YAML file."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from hyrt.config.build import explained
from hyrt.config.commented_yaml import commented_section
from hyrt.config.yaml_text import load_settings
from hyrt.errors import ConfigError
from hyrt.graph.tables.import_schema import ImportSchema

_LISTING = "hyrt data import --print-schema FILES"


def read_schema(path: Path) -> ImportSchema:
    """Read a schema.

    Raises
    ------
    ConfigError
        Naming the file, and the first setting that is wrong.
    """
    try:
        return ImportSchema.model_validate(load_settings(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {explained(error, ImportSchema, _LISTING)}") from None


def schema_text(schema: ImportSchema) -> str:
    """A schema as `read_schema` reads it, with meanings; what is not given is commented out."""
    return "\n".join(commented_section(schema)) + "\n"
