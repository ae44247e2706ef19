"""What distributions declare under an entry-point group: names at once, imports when first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from hyrt_perfmodel.nearest_name import nearest_name

from hyrt.errors import ConfigError, HyrtError, PluginConflict, Terminated, describe
from hyrt.machine.child_processes.last_words import last_words

Parent = TypeVar("Parent")


@dataclass(frozen=True, slots=True)
class EntryPointGroup:
    """One extension point: the built-in kinds and those of third parties are declared in the same group."""

    group: str
    """Name of the entry-point group, like `hyrt.devices`."""
    noun: str
    """What one of its names is, for messages: `device kind`."""
    error: type[HyrtError] = ConfigError
    """What an unknown name or a broken plug-in is raised as."""
    see: str = ""
    """Where the user finds the names, as the last sentence of a message; empty for nowhere."""

    def declared(self) -> dict[str, list[EntryPoint]]:
        """All entry points by name; several for one name are a conflict. Nothing is imported."""
        by_name: dict[str, list[EntryPoint]] = {}
        for entry in _installed(entry_points, self.group, tuple(sys.path)):
            known = by_name.setdefault(entry.name, [])
            # An editable installation may be listed twice.
            if all(other.value != entry.value for other in known):
                known.append(entry)
        return by_name

    def spelling(self, name: Any) -> Any:
        """The declared name that differs from a given one in case alone, else what was given."""
        if not isinstance(name, str) or name in (known := self.declared()):
            return name
        same = [other for other in known if other.casefold() == name.casefold()]
        return same[0] if len(same) == 1 else name

    def entry(self, name: str, *, nearest: str = "") -> EntryPoint:
        """The one entry point of a name; nothing is imported.

        Parameters
        ----------
        name
            The name as it is declared.
        nearest
            What to compare the known names with where `name` is unknown; `name` itself by default.

        Raises
        ------
        HyrtError
            The group's `error` if nothing of that name is declared, with the nearest name.
        PluginConflict
            If two distributions declare the name.
        """
        known = self.declared()
        if name not in known:
            near = nearest_name(nearest or name, known)
            hint = f" (did you mean {near!r}?)" if near else ""
            there = f"the known ones are {', '.join(sorted(known))}"
            if not known:
                there = "none is declared: install hyrt again with pip, so that its own are known"
            raise self.error(f"unknown {self.noun} {name!r}{hint}: {there}{self.see and '. ' + self.see}")
        return self.only(name, known[name])

    def only(self, name: str, entries: list[EntryPoint]) -> EntryPoint:
        """The single one of a name's entry points.

        Raises
        ------
        PluginConflict
            If there are several, naming the distributions.
        """
        if len(entries) > 1:
            owners, remedy = self.conflict(entries)
            raise PluginConflict(f"{self.noun} {name!r} is declared by {owners}: {remedy}")
        return entries[0]

    def conflict(self, entries: list[EntryPoint]) -> tuple[str, str]:
        """Who declares one name, and what to do about it: hyrt itself stays."""
        owners = " and by ".join(sorted(provider(entry) for entry in entries))
        foreign = sorted(provider(entry) for entry in entries if is_foreign(entry))
        remedy = "one of them" if len(foreign) == len(entries) else " and ".join(foreign)
        return owners, f"uninstall {remedy}"

    def named_if_it_ends(self, entry: EntryPoint) -> AbstractContextManager[None]:
        """Name a third party's entry point on standard error if the process ends in the block, however."""
        if not is_foreign(entry):
            return nullcontext()
        return last_words(
            f"hyrt: {self.noun} {entry.name!r} ended the process while it was being loaded: its "
            f"{entry.value} is from {provider(entry)}; update or uninstall that package, or run without it"
        )

    def load(self, name: str) -> Any:
        """Import what is declared under a name.

        Raises
        ------
        HyrtError
            The group's `error` if nothing of that name is declared, or it cannot be imported.
        PluginConflict
            If two distributions declare the name.
        """
        entry = self.entry(name)
        try:
            if entry.module in sys.modules:
                return entry.load()
            with self.named_if_it_ends(entry):
                return entry.load()
        except BaseException as error:
            # A plug-in may raise anything, SystemExit too: it is the plug-in that is broken.
            if isinstance(error, KeyboardInterrupt | Terminated):
                raise
            why = " ".join(describe(error).split())
            raise self.error(
                f"{self.noun} {name!r}: its {entry.value} ({provider(entry)}) is broken: {why}{remedy(entry)}"
            ) from error

    def load_class(self, name: str, parent: type[Parent]) -> type[Parent]:
        """The class that is declared under a name, like `load`.

        Raises
        ------
        HyrtError
            The group's `error` also where it is not a class derived from `parent`, or lacks a method that
            `parent` leaves to it.
        PluginConflict
            If two distributions declare the name.
        """
        found, entry = self.load(name), self.entry(name)
        if not (isinstance(found, type) and issubclass(found, parent)):
            raise self.error(
                f"{self.noun} {name!r}: {entry.value} is not a class derived from "
                f"{parent.__module__}.{parent.__name__}{remedy(entry)}"
            )
        lacking: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        if lacking:
            methods = ", ".join(sorted(lacking))
            what = f"its class {found.__name__} does not define {methods}"
            raise self.error(f"{self.named(name)}: {what}{remedy(entry)}")
        return found

    def named(self, name: str) -> str:
        """One of the group's names with the distribution that declares it: `colour 'red' (acme 2.0)`."""
        return f"{self.noun} {name!r} ({provider(self.entry(name))})"

    @contextmanager
    def blamed(self, name: str, doing: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Turn what a declared kind's own code raises into the group's `error`, with kind and distribution.

        hyrt's own errors pass, and those in `passing`. `doing` says what failed, like `build`.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, (HyrtError, *passing)):
                raise
            why = " ".join(describe(error).split())
            raise self.error(f"{self.named(name)}: {doing} failed: {why}") from error


@lru_cache(maxsize=32)
def _installed(
    find: Callable[..., Iterable[EntryPoint]], group: str, path: tuple[str, ...]
) -> tuple[EntryPoint, ...]:
    """What the distributions on a search path declare: their files are read once, not for each setting."""
    return tuple(find(group=group))


def is_foreign(entry: EntryPoint) -> bool:
    """Whether another distribution than hyrt declares an entry point."""
    return entry.dist is None or entry.dist.name.lower() != "hyrt"


def remedy(entry: EntryPoint) -> str:
    """What to do about one that is broken, to end a message: nothing where it is hyrt's own."""
    return f": update or uninstall {provider(entry)}" if is_foreign(entry) else ""


def provider(entry: EntryPoint) -> str:
    """Name and version of the distribution that declares an entry point; else the entry point's value."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
