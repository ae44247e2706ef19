"""Connection to the store through which the ranks of a run find each other."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hyrt.errors import RankLost, one_line


def keeper_of_store() -> str:
    """Return the name of the process that hosts the store, for messages."""
    return "torchrun" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0"


def found_store(timeout_s: float, keeper: str) -> tuple[Any, int, int]:
    """Connect to the store that the environment names; return the store, this rank and the number of ranks.

    Parameters
    ----------
    timeout_s
        Longest time to wait for the connection, in seconds.
    keeper
        Result of `keeper_of_store`.

    Raises
    ------
    RankLost
        If the store cannot be reached, or hosted, in this time.
    """
    outcome: list[tuple[Any, int, int] | Exception] = []

    def connect() -> None:
        try:
            # torch retries once and logs its first failure: with twice the time, this function fails before.
            outcome.append(_store_from_env(keeper, timedelta(seconds=2 * timeout_s)))
        except (dist.DistError, RuntimeError, ValueError) as error:
            outcome.append(error)

    connector = threading.Thread(target=connect, name="hyrt.ranks.store", daemon=True)
    connector.start()
    connector.join(timeout_s)
    first = outcome[0] if outcome else TimeoutError("nothing answers")
    if isinstance(first, tuple):
        return first
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if keeper != f"rank {os.environ['RANK']}":
        raise RankLost(
            f"the store of the ranks at {address}, which {keeper} keeps, could not be reached within "
            f"{timeout_s:g} s: {one_line(str(first))}. Check MASTER_ADDR and MASTER_PORT, that {keeper} has "
            "started, and that a firewall lets them through"
        ) from first
    raise RankLost(
        f"the store of the ranks cannot be kept at {address}: {one_line(str(first))}. Check MASTER_ADDR, and "
        "that MASTER_PORT is free"
    ) from first


def _store_from_env(keeper: str, timeout: timedelta) -> tuple[Any, int, int]:
    if keeper == "torchrun":
        store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
        return store, rank, size
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torch's rendezvous waits for all ranks here and cannot report which rank is missing.
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch gives it a name there without exporting it.
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )
    return store, rank, size
