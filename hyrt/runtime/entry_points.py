"""Entry-point groups of plug-ins: names are listed without imports, and classes imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.errors import ConfigError, HyrtError, PluginConflictError, Terminated, describe_error
from hyrt.runtime.shutdown import report_unexpected_exit

Parent = TypeVar("Parent")


@dataclass(frozen=True, slots=True)
class EntryPointGroup:
    """Extension point, in which built-in and third-party kinds are declared in the same way."""

    group: str
    """Name of the entry-point group, such as `hyrt.devices`."""
    noun: str
    """Noun for the names of the group in messages, such as `device kind`."""
    error: type[HyrtError] = ConfigError
    """Exception class for an unknown name or a broken plug-in."""
    docs_hint: str = ""
    """Last sentence of messages, which refers to the documentation of the names; may be empty."""

    def entries_by_name(self) -> dict[str, list[EntryPoint]]:
        """Return all entry points by name, without imports; several with one name are a conflict."""
        by_name: dict[str, list[EntryPoint]] = {}
        for entry in _installed(entry_points, self.group, tuple(sys.path)):
            known = by_name.setdefault(entry.name, [])
            # An editable installation may list the same entry point twice.
            if all(other.value != entry.value for other in known):
                known.append(entry)
        return by_name

    def canonical_name(self, name: Any) -> Any:
        """Return the declared name that equals `name` up to case, or `name` itself if there is none."""
        if not isinstance(name, str) or name in (known := self.entries_by_name()):
            return name
        same = [other for other in known if other.casefold() == name.casefold()]
        return same[0] if len(same) == 1 else name

    def find_entry(self, name: str, *, nearest: str = "") -> EntryPoint:
        """Return the entry point with a name, without importing it.

        Raises the group's `error` for an unknown name, with a suggestion that resembles `nearest` (by default
        the name), and PluginConflictError if two distributions declare the name.
        """
        known = self.entries_by_name()
        if name not in known:
            near = nearest_name(nearest or name, known)
            hint = f" (did you mean {near!r}?)" if near else ""
            known_names = f"the known ones are {', '.join(sorted(known))}"
            if not known:
                known_names = "none is registered: reinstall hyrt with pip"
            raise self.error(
                f"unknown {self.noun} {name!r}{hint}: {known_names}{self.docs_hint and '. ' + self.docs_hint}"
            )
        return self.require_single(name, known[name])

    def require_single(self, name: str, entries: list[EntryPoint]) -> EntryPoint:
        """Return the single entry of a name's entry points.

        Raises PluginConflictError, which names the distributions, if there are several.
        """
        if len(entries) > 1:
            owners, remedy = self.describe_conflict(entries)
            raise PluginConflictError(f"{self.noun} {name!r} is declared by {owners}: {remedy}")
        return entries[0]

    def describe_conflict(self, entries: list[EntryPoint]) -> tuple[str, str]:
        """Return the distributions that declare one name, and a remedy that does not remove hyrt."""
        owners = " and by ".join(sorted(provider(entry) for entry in entries))
        foreign = sorted(provider(entry) for entry in entries if is_third_party(entry))
        remedy = "one of them" if len(foreign) == len(entries) else " and ".join(foreign)
        return owners, f"uninstall {remedy}"

    def report_exit_of(self, entry: EntryPoint) -> AbstractContextManager[None]:
        """Print a line about a third-party entry point if the process ends within the block."""
        if not is_third_party(entry):
            return nullcontext()
        return report_unexpected_exit(
            f"hyrt: {self.noun} {entry.name!r} ended the process while it was being loaded ({entry.value} "
            f"from {provider(entry)}): update or uninstall that package, or run without it"
        )

    def load(self, name: str) -> Any:
        """Import the object that is declared under a name.

        Raises the group's `error` if the name is unknown or the object cannot be imported, and
        PluginConflictError if two distributions declare the name.
        """
        entry = self.find_entry(name)
        try:
            if entry.module in sys.modules:
                return entry.load()
            with self.report_exit_of(entry):
                return entry.load()
        except BaseException as error:
            # A plug-in may raise anything, including SystemExit, so report it as broken.
            if isinstance(error, KeyboardInterrupt | Terminated):
                raise
            reason = " ".join(describe_error(error).split())
            raise self.error(
                f"{self.noun} {name!r} is broken, because {entry.value} of {provider(entry)} could not be "
                f"loaded ({reason}){format_remedy(entry)}"
            ) from error

    def load_class(self, name: str, parent: type[Parent]) -> type[Parent]:
        """Import the class that is declared under a name, like `load`.

        Also raises the group's `error` if the object is not a subclass of `parent`, or does not implement all
        abstract methods of `parent`.
        """
        cls, entry = self.load(name), self.find_entry(name)
        if not (isinstance(cls, type) and issubclass(cls, parent)):
            raise self.error(
                f"{self.noun} {name!r} must be a class derived from "
                f"{parent.__module__}.{parent.__name__}, but {entry.value} is not{format_remedy(entry)}"
            )
        missing: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
        if missing:
            methods = ", ".join(sorted(missing))
            problem = f"its class {cls.__name__} does not define {methods}"
            raise self.error(f"{self.describe(name)}: {problem}{format_remedy(entry)}")
        return cls

    def describe(self, name: str) -> str:
        """Return a name with the distribution that declares it, such as `colour 'red' (acme 2.0)`."""
        return f"{self.noun} {name!r} ({provider(self.find_entry(name))})"

    @contextmanager
    def wrap_errors(
        self, name: str, doing: str, *, passing: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Convert exceptions of a plug-in's code to the group's `error`, which names kind and distribution.

        hyrt's errors, and exceptions of the types in `passing`, are raised unchanged. `doing` names the
        operation, such as `build`.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, (HyrtError, *passing)):
                raise
            reason = " ".join(describe_error(error).split())
            raise self.error(f"{self.describe(name)}: {doing} failed: {reason}") from error


@lru_cache(maxsize=32)
def _installed(
    find: Callable[..., Iterable[EntryPoint]], group: str, path: tuple[str, ...]
) -> tuple[EntryPoint, ...]:
    """Return the entry points on a search path; cached, because reading all metadata is slow."""
    return tuple(find(group=group))


def is_third_party(entry: EntryPoint) -> bool:
    """Return whether a distribution other than hyrt declares an entry point."""
    return entry.dist is None or entry.dist.name.lower() != "hyrt"


def format_remedy(entry: EntryPoint) -> str:
    """Return the remedy for a broken entry point, for the end of a message; empty if hyrt declares it."""
    return f": update or uninstall {provider(entry)}" if is_third_party(entry) else ""


def provider(entry: EntryPoint) -> str:
    """Return the name and version of an entry point's distribution, or the entry point's value."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
