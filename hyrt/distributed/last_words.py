"""What the ranks of a run that fails leave for the one that writes the records of all of them."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import DistError

# All ranks have to end in seconds, and some of these are over when the loss is known.
_WAIT_S = 2.0
_POLL_S = 0.02
# More would keep the store from telling who lives.
_MOST_BYTES = 32 << 20


class LastWords:
    """Data of the ranks, by way of their store: the groups of a run that fails are given up.

    Parameters
    ----------
    store
        Gives a connection to a store that all ranks reach, of its own.
    rank
        The number of this rank.
    reachable
        Gives the other ranks that may still leave something.
    """

    def __init__(self, store: Callable[[], Any], rank: int, reachable: Callable[[], Sequence[int]]) -> None:
        self._store = store
        self._rank = rank
        self._reachable = reachable
        self._until: float | None = None

    @property
    def is_for_this_rank(self) -> bool:
        """Whether this rank gets what the others leave: the first one of those that are not lost."""
        return all(self._rank < other for other in self._reachable())

    def leave(self, subject: str, data: bytes) -> Mapping[int, bytes]:
        """Leave data, and get those of all ranks that could: none but at the first rank that is left.

        All calls together take two seconds at most: what is not there by then is left out.

        Parameters
        ----------
        subject
            What the data are, in a word that is used once.
        data
            Any bytes; more than 32 MiB are not left.
        """
        gathers = self.is_for_this_rank
        found = {self._rank: data} if gathers else {}
        if not self._reachable():
            return found
        if self._until is None:
            self._until = time.monotonic() + _WAIT_S
        # A store whose machine is gone may not answer for minutes.
        work = threading.Thread(
            target=self._gather if gathers else self._give,
            args=(subject, found if gathers else data),
            name="hyrt.ranks.last",
            daemon=True,
        )
        work.start()
        work.join(max(0.0, self._until - time.monotonic()))
        return dict(sorted(found.items()))

    def _give(self, subject: str, data: bytes) -> None:
        # Where nobody keeps the store any more, nobody reads either.
        with suppress(DistError, RuntimeError):
            if len(data) <= _MOST_BYTES:
                self._store().set(_key(subject, self._rank), base64.b64encode(data).decode())

    def _gather(self, subject: str, found: dict[int, bytes]) -> None:
        assert self._until is not None
        # What has been found by then is all that there is.
        with suppress(DistError, RuntimeError):
            store = self._store()
            while time.monotonic() < self._until:
                missing = [rank for rank in self._reachable() if rank not in found]
                for rank in missing:
                    key = _key(subject, rank)
                    if store.check([key]):
                        found[rank] = base64.b64decode(store.get(key))
                if not missing:
                    return
                time.sleep(_POLL_S)


def _key(subject: str, rank: int) -> str:
    return f"last/{subject}/{rank}"
