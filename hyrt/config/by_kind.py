"""A section of the settings whose class is what an entry-point group declares under the section's `kind`."""

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
"""Validation context for settings that a run was started with: see `ByKind`."""


@dataclass(frozen=True, slots=True)
class ByKind:
    """Annotates a field with where the class of its section is found.

    A key that only another kind has is an error that names this kind. At its default it is dropped, since
    earlier versions wrote the keys of all kinds into settings files; in the settings of a run that was
    started it always is.
    """

    group: EntryPointGroup
    """The entry-point group that declares the kinds."""
    parent: type[Section]
    """The class that all of them derive from."""
    default: str
    """The kind where the settings name none."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, handler(source))

    def sections(self) -> Iterator[tuple[str, type[Section]]]:
        """All kinds that can be loaded, with the classes of their sections."""
        for kind in sorted(self.group.declared()):
            try:
                yield kind, self.section(kind)
            except HyrtError:
                continue  # Whoever asks for this kind hears why it is broken.

    def section(self, kind: str) -> type[Section]:
        """The class of a kind's section; raises as `EntryPointGroup.load_class`, and if it has no schema."""
        section = self.group.load_class(kind, self.parent)
        if not section.__pydantic_complete__:
            with self.group.blamed(kind, "reading its fields"):
                section.model_rebuild()
        return section

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        kind = value.get("kind", self.default) if isinstance(value, Mapping) else None
        if isinstance(kind, bytes):
            # As pydantic does: `!!binary` of YAML.
            kind = kind.decode(errors="replace")
        if not isinstance(kind, str):
            return value  # An instance already, or wrong in a way that pydantic explains.
        kind = self.group.spelling(kind)
        section = self.section(kind)
        lenient = info.context is LENIENT
        own = {
            key: each
            for key, each in value.items()
            if not self._is_foreign(section, key, each, kind, lenient)
        }
        return section.model_validate({**own, "kind": kind})

    def _is_foreign(self, section: type[Section], key: str, value: Any, kind: str, lenient: bool) -> bool:
        """Whether a key is to be dropped, as it is another kind's.

        Raises
        ------
        ConfigError
            If it says something that this kind would ignore.
        """
        if key in section.model_fields:
            return False
        owners = {
            other: found.model_fields[key] for other, found in self.sections() if key in found.model_fields
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
