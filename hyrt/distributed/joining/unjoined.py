"""The end of a rank that does not join the others: they wait for it, and are told why it does not come."""

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

# All ranks are to end within ten seconds, of which importing torch takes some.
_MOST_S = 6.0


def tell_why_unjoined(error: BaseException, most_s: float = _MOST_S) -> None:
    """Meet the other ranks only to tell them why this one fails; nothing if they do not come in time.

    Parameters
    ----------
    error
        The reason.
    most_s
        Longest time that it may take, in seconds.
    """
    # A store that does not answer may keep whoever asks it for longer.
    telling = threading.Thread(target=_tell, args=(error, most_s), name="hyrt.ranks.unjoined", daemon=True)
    telling.start()
    telling.join(most_s)


def _tell(error: BaseException, most_s: float) -> None:
    # It is the reason that counts, and it has been printed; that nobody can be told is no more than noise.
    with suppress(HyrtError, DistError, RuntimeError):
        launch = launched()
        if launch is None:
            return
        keeper = keeper_of_store()
        store, rank, size = found_store(most_s, keeper)
        met = meet(PrefixStore("hyrt", store), rank, size, launch.restarts, most_s)
        fellows = FellowRanks(PrefixStore(f"hyrt/{met.name}", store), rank, size, lambda loss: None, keeper)
        fellows.tell_failure(error)
        if keeper == f"rank {rank}":
            fellows.wait_until_known()
