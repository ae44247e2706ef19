"""What a control group's memory limits leave, version 1 and 2."""

from __future__ import annotations

from pathlib import Path

from hyrt.machine.cores import read_system_file

# Version 1 writes "no limit" as the largest multiple of a page below 2^63.
_NO_LIMIT = 2**62


def memory_left(membership: Path, root: Path) -> int | None:
    """Bytes that may still be taken: the least over this process's groups with a limit; None without any.

    Page cache that the system gives back under pressure does not count as taken.

    Parameters
    ----------
    membership
        The file that names the groups, `/proc/self/cgroup`.
    root
        Where the control groups are mounted, `/sys/fs/cgroup`.
    """
    paths = {"": "", "memory": ""}
    for line in read_system_file(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    left = [
        *_left(root, paths[""], "memory.max", "memory.current", "inactive_file"),
        *_left(
            root / "memory",
            paths["memory"],
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ]
    return min(left, default=None)


def _left(root: Path, path: str, limit: str, usage: str, cache: str) -> list[int]:
    """Of the group and of those above it: a limit there binds too."""
    found = []
    folder = root
    for part in ("", *path.strip("/").split("/")):
        if part == "..":
            continue
        folder = folder / part
        most, taken = read_system_file(folder / limit), read_system_file(folder / usage)
        if most.isdigit() and taken.isdigit() and int(most) < _NO_LIMIT:
            found.append(max(0, int(most) - int(taken) + _reclaimable(folder / "memory.stat", cache)))
    return found


def _reclaimable(file: Path, key: str) -> int:
    for line in read_system_file(file).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0
