"""Process that writes a run folder: its environment, its lock, and its write errors."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from hyrt.errors import HyrtError, join_names
from hyrt.runtime.hardware import cgroup_limits, processor_name


@contextmanager
def explain_write_errors(
    path: Path, hint: str = "Free space, or choose a writable folder."
) -> Iterator[None]:
    """Convert an OSError in the block to a HyrtError with the path and `hint`."""
    try:
        yield
    except OSError as error:
        raise HyrtError(f"{path} cannot be written: {error.strerror or error}. {hint}") from error


_PACKAGES = ("hyrt", "torch", "numpy", "numba", "safetensors", "pydantic")
_NUMERIC_PACKAGES = ("hyrt", "torch", "numpy", "numba")
_VARIABLES = ("OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "KMP_", "GOMP_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


def describe_environment() -> dict[str, Any]:
    """Describe machine and software as JSON values, without names of host and user; None if unknown.

    The keys are `date` (UTC, ISO 8601), `command` (list), `versions` (read without importing packages),
    `platform`, `cpu` (`model`, `physical_cores`, `logical_cores`, `affinity`: usable CPUs), `memory_bytes`,
    `cgroup` (limits `cpus` and `memory_bytes`, None without a limit) and `variables` (environment variables
    that affect threads).
    """
    import psutil

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu": {
            "model": processor_name(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        },
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup": cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def changed_versions(run: Path) -> str:
    """List packages whose version has changed since the start of a run: `hyrt 0.1.0 (now 0.2.0)`.

    Only packages that affect the bits of a step count. Empty without changes, or if versions are unknown.
    """
    try:
        versions = json.loads((run / "env.json").read_bytes())["versions"]
        recorded = {name: versions[name] for name in _NUMERIC_PACKAGES if versions.get(name)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    now = {name: _version(name) for name in recorded}
    changed = [f"{name} {old} (now {now[name]})" for name, old in recorded.items() if now[name] != old]
    return join_names(changed) if changed else ""


_NAME = ".lock"


@contextmanager
def lock_run(folder: Path) -> Iterator[str]:
    """Lock a run folder until the block ends; the operating system releases the lock of a killed process.

    Yields the name of the holder, which is in the lock file until the block ends. If an unlocked folder has a
    name in its lock file, the holder was killed. Raises HyrtError if the folder is locked or not writable.
    """
    path = folder / _NAME
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise HyrtError(
            f"{path} cannot be opened ({error.strerror}): make the run folder writable"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HyrtError(
                f"another process is training the run in {folder}: wait until it ends, or stop it"
            ) from None
        holder = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
        # A full disk does not matter, because the run itself does not need the name.
        with suppress(OSError):
            file.truncate(0)
            file.write(holder.encode())
        try:
            yield holder
        finally:
            with suppress(OSError):
                file.truncate(0)


def take_over(folder: Path, holder: str) -> ExitStack | None:
    """Lock the run folder of a killed process; return a context that releases the lock when closed.

    Returns None if the folder is unreachable or locked, or if `holder` (see `lock_run`) has released it.
    `folder` is the path that the holder used.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / _NAME).open("rb+", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # On another machine, the same path may be the folder of another run.
            if file.read() != holder.encode():
                return None
            # Clear the name, so that only one process takes the folder over.
            file.truncate(0)
        except OSError:
            return None
        return stack.pop_all()
