"""Number of ranks on this machine, which share its cores and memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.watch.rank_figures import told_by_all
from hyrt.machine.cores import LOCAL_RANKS, local_ranks

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@contextmanager
def local_ranks_known(group: RankGroup) -> Iterator[None]:
    """Set LOCAL_WORLD_SIZE, as torchrun does, to the number of ranks on this machine within the block.

    Without a launcher the variable is unset; with two launchers on one machine, each counts only its ranks.

    Parameters
    ----------
    group
        all ranks; each rank must call this function at the same time.
    """
    machines = told_by_all(group, machine_identity())
    count = max(machines.count(machines[group.rank]), local_ranks())
    previous = os.environ.get(LOCAL_RANKS)
    os.environ[LOCAL_RANKS] = str(count)
    try:
        yield
    finally:
        if previous is None:
            del os.environ[LOCAL_RANKS]
        else:
            os.environ[LOCAL_RANKS] = previous


def machine_identity() -> list[Any]:
    """Return values that are equal for two processes on one machine.

    Containers and emulated nodes have separate network namespaces and count as machines.
    """
    try:
        namespace = os.stat(_NETWORK)
        return [_BOOT.read_text().strip(), namespace.st_dev, namespace.st_ino]
    except OSError:
        return [platform.node()]
