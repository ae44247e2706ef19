"""Finding device backends: entry points of the group `hyrt.devices`, imported when they are first used."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from hyrt.errors import DeviceUnavailable, PluginConflict

if TYPE_CHECKING:
    from hyrt.device import Device, DeviceInfo

GROUP = "hyrt.devices"


def backends() -> dict[str, EntryPoint]:
    """The declared backends by kind; nothing is imported.

    Raises
    ------
    PluginConflict
        If two distributions declare the same kind.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.get(entry.name)
        if other is not None and other.value != entry.value:
            owners = sorted(str(e.dist.name) if e.dist else e.value for e in (entry, other))
            raise PluginConflict(
                f"device kind {entry.name!r} is declared by {owners[0]} and by {owners[1]}: uninstall one of them"
            )
        found[entry.name] = entry
    return found


def find_device(name: str) -> tuple[type[Device], DeviceInfo]:
    """The backend and the device behind a name like `cpu` or `cuda:0`.

    Raises
    ------
    DeviceUnavailable
        If there is no such kind, its backend cannot be imported, or the machine has no such device.
    """
    kind, _, index = name.partition(":")
    known = backends()
    if kind not in known:
        raise DeviceUnavailable(f"no device kind {kind!r}: there are {', '.join(sorted(known))}")
    try:
        backend: type[Device] = known[kind].load()
    except Exception as error:  # Whatever a plug-in's import does, it is the plug-in that is broken.
        raise DeviceUnavailable(
            f"{name}: its backend {known[kind].value} cannot be imported: {error}"
        ) from error
    if index and not index.isdecimal():
        raise DeviceUnavailable(
            f"cannot read the device {name!r}: write kind or kind:number, like cpu or cuda:0"
        )
    wanted = int(index) if index else 0
    there = backend.probe()
    for info in there:
        if info.index == wanted:
            return backend, info
    found = ", ".join(f"{info.name} {info.description}" for info in there) or "none"
    raise DeviceUnavailable(f"{kind}:{wanted} is not there: found {found}")
