"""Schema of a table import as a YAML file."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from hyrt.config.commented_yaml import commented_section
from hyrt.config.explained import explained
from hyrt.config.yaml_text import TextYaml, load_settings
from hyrt.errors import ConfigError
from hyrt.graph.tables.import_schema import ImportSchema
from hyrt.graph.tables.typed.typed_schema import TypedImportSchema

_LISTING = "hyrt data import --print-schema FILES"


def read_schema(path: Path) -> ImportSchema | TypedImportSchema:
    """Read a schema; a schema with `relations` is that of a heterogeneous graph.

    Raises
    ------
    ConfigError
        Naming the file and the first wrong setting.
    """
    # Names of columns and missing values may be no, on or 007.
    settings = load_settings(path, TextYaml)
    kind: type[ImportSchema | TypedImportSchema] = ImportSchema
    if "relations" in settings:
        kind = TypedImportSchema
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explained(error, kind, _LISTING)}") from None


def schema_text(schema: ImportSchema) -> str:
    """Return the YAML text of a schema with meanings; settings that are not set are commented out."""
    return "\n".join(commented_section(schema)) + "\n"
