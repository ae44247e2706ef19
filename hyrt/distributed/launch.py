"""Rank and number of ranks from a launcher's environment variables, such as those of torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hyrt.errors import ConfigError, HyrtError, join_names
from hyrt.formatting import parse_int

_LAST_PORT = 65535
_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """Rank, number of ranks and restarts of a process that a launcher has started."""

    rank: int
    size: int
    restarts: int = 0
    """Number of times that the launcher has restarted all ranks."""


def launch_info_from_env(environment: Mapping[str, str] = os.environ) -> LaunchInfo | None:
    """Read the launch settings from the environment; return None without a launcher.

    torchrun sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RESTART_COUNT. Raises
    ConfigError if a variable is missing or is not a number.
    """
    size = _number(environment, "WORLD_SIZE", 1)
    if size < 2:
        return None
    missing = [name for name in _NEEDED if name not in environment]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {size}, but {join_names(missing)} {'is' if len(missing) == 1 else 'are'} not "
            f"set: start the processes with torchrun, or set {'it' if len(missing) == 1 else 'them'}"
        )
    if not 1 <= _number(environment, "MASTER_PORT", 0) <= _LAST_PORT:
        raise ConfigError(
            f"MASTER_PORT is {environment['MASTER_PORT']}, but must be from 1 to {_LAST_PORT}: set it to "
            "a free port"
        )
    rank = _number(environment, "RANK", 0)
    if rank >= size:
        raise ConfigError(f"RANK is {rank}, but WORLD_SIZE is {size}: number the ranks from 0 to {size - 1}")
    return LaunchInfo(rank, size, _number(environment, "TORCHELASTIC_RESTART_COUNT", 0))


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    number = parse_int(text)
    if number is None or number >= 2**31:
        raise ConfigError(f"the environment variable {name} is {text!r:.60}: set it to a number, or unset it")
    return number


def rank_prefix(environment: Mapping[str, str] = os.environ) -> str:
    """Return the prefix of printed lines, such as `rank 2: `; empty without a launcher."""
    several = environment.get("WORLD_SIZE", "1") not in ("", "1")
    return f"rank {environment.get('RANK', '?')}: " if several else ""


@contextmanager
def report_join_failures() -> Iterator[None]:
    """Set `peers_wait` on errors in the block, which runs before this process joins the other ranks."""
    try:
        yield
    except HyrtError as error:
        error.peers_wait = True
        raise
