"""Settings sections whose class is declared by an entry-point group under the section's `kind`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from hyrt.errors import ConfigError, HyrtError
from hyrt.machine.entry_points import EntryPointGroup
from hyrt.section import Section

LENIENT = {"foreign keys": "dropped"}
"""Validation context for the settings of an existing run; see `ByKind`."""


@dataclass(frozen=True, slots=True)
class ByKind:
    """Annotation of a field that selects the class of its section by kind.

    A key that only exists for another kind is an error that names this kind. It is dropped if it has its
    default value, because earlier versions wrote the keys of all kinds into settings files, and always in the
    settings of an existing run.
    """

    group: EntryPointGroup
    """Entry-point group that declares the kinds."""
    parent: type[Section]
    """Base class of all section classes."""
    default: str
    """Kind if the settings name none."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, handler(source))

    def sections(self) -> Iterator[tuple[str, type[Section]]]:
        """Yield all kinds that can be loaded, with their section classes."""
        for kind in sorted(self.group.declared()):
            try:
                yield kind, self.section(kind)
            except HyrtError:
                continue  # A broken kind is reported when it is used.

    def section(self, kind: str) -> type[Section]:
        """Return the section class of a kind; raises as `EntryPointGroup.load_class`, or if it has no
        schema.
        """
        section = self.group.load_class(kind, self.parent)
        if not section.__pydantic_complete__:
            with self.group.blamed(kind, "reading its fields"):
                section.model_rebuild()
        return section

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        kind = value.get("kind", self.default) if isinstance(value, Mapping) else None
        if isinstance(kind, bytes):
            # As in pydantic: YAML's `!!binary`.
            kind = kind.decode(errors="replace")
        if not isinstance(kind, str):
            return value  # Already an instance, or an error that pydantic explains.
        kind = self.group.spelling(kind)
        section = self.section(kind)
        lenient = info.context is LENIENT
        section_settings = {
            key: item
            for key, item in value.items()
            if not self._is_foreign(section, key, item, kind, lenient)
        }
        return section.model_validate({**section_settings, "kind": kind})

    def _is_foreign(self, section: type[Section], key: str, value: Any, kind: str, lenient: bool) -> bool:
        """Return whether a key belongs to another kind and has to be dropped.

        Raises
        ------
        ConfigError
            If the key has a value that this kind would ignore.
        """
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
                f"{noun.partition('.')[0]}.{key} is a setting of {noun}={kinds}, and has "
                f"no effect with {noun}={kind}: omit it"
            )
        return bool(owners)
