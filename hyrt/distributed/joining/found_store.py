"""The store in which the ranks of a run find each other."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hyrt.errors import RankLost, one_line


def keeper_of_store() -> str:
    """Whose process keeps the store that the environment names, for messages."""
    return "torchrun" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0"


def found_store(timeout_s: float, keeper: str) -> tuple[Any, int, int]:
    """The store that the environment names, the number of this rank, and how many there are.

    Parameters
    ----------
    timeout_s
        Longest time to wait for it.
    keeper
        From `keeper_of_store`.

    Raises
    ------
    RankLost
        If it cannot be reached, or kept, in that time.
    """
    found: list[tuple[Any, int, int] | Exception] = []

    def find() -> None:
        try:
            # torch tries twice, and tells of the first time in its own words: by then this is over.
            found.append(_store_of_environment(keeper, timedelta(seconds=2 * timeout_s)))
        except (dist.DistError, RuntimeError, ValueError) as error:
            found.append(error)

    finding = threading.Thread(target=find, name="hyrt.ranks.store", daemon=True)
    finding.start()
    finding.join(timeout_s)
    first = found[0] if found else TimeoutError("nothing answers")
    if isinstance(first, tuple):
        return first
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if keeper != f"rank {os.environ['RANK']}":
        raise RankLost(
            f"the store of the ranks at {where}, which {keeper} keeps, could not be reached within "
            f"{timeout_s:g} s: {one_line(str(first))}. Check MASTER_ADDR and MASTER_PORT, that {keeper} has "
            "started, and that a firewall lets them through"
        ) from first
    raise RankLost(
        f"the store of the ranks cannot be kept at {where}: {one_line(str(first))}. Check MASTER_ADDR, and "
        "that MASTER_PORT is free"
    ) from first


def _store_of_environment(keeper: str, timeout: timedelta) -> tuple[Any, int, int]:
    if keeper == "torchrun":
        store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
        return store, rank, size
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torch's own way waits for all ranks here, and cannot tell which one does not come.
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch gives it a name there without exporting it.
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )
    return store, rank, size
