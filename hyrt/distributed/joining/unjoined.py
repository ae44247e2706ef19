"""Failure reports of a rank that cannot join the other ranks, which wait for it."""

from __future__ import annotations

import threading
from contextlib import suppress

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.distributed.fellow_ranks import FellowRanks
from hyrt.distributed.joining.found_store import found_store, keeper_of_store
from hyrt.distributed.joining.meeting import meet
from hyrt.distributed.launch import launched
from hyrt.errors import HyrtError

# All ranks must exit within ten seconds, and importing torch takes part of that time.
_TIME_LIMIT_S = 6.0


def tell_why_unjoined(error: BaseException, most_s: float = _TIME_LIMIT_S) -> None:
    """Join the other ranks only to report why this rank fails; give up silently if they do not join in time.

    Parameters
    ----------
    error
        The reason.
    most_s
        Time limit in seconds.
    """
    # An unresponsive store may block its caller for longer.
    reporter = threading.Thread(
        target=_send_report, args=(error, most_s), name="hyrt.ranks.unjoined", daemon=True
    )
    reporter.start()
    reporter.join(most_s)


def _send_report(error: BaseException, timeout_s: float) -> None:
    # The reason has been printed already; a failed report would only add noise.
    with suppress(HyrtError, DistError, RuntimeError):
        launch = launched()
        if launch is None:
            return
        keeper = keeper_of_store()
        store, rank, size = found_store(timeout_s, keeper)
        result = meet(PrefixStore("hyrt", store), rank, size, launch.restarts, timeout_s)
        heartbeat = FellowRanks(
            PrefixStore(f"hyrt/{result.name}", store), rank, size, lambda loss: None, keeper
        )
        heartbeat.tell_failure(error)
        if keeper == f"rank {rank}":
            heartbeat.wait_until_known()
