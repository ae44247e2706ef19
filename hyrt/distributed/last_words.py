"""Exchange of reports between the ranks of a failing run, for the rank that writes all records."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import DistError

# All ranks must exit within seconds, and part of that time has passed when the failure is detected.
_REPORT_WAIT_S = 2.0
_POLL_S = 0.02
# Larger values would delay heartbeats in the store.
_MAX_REPORT_BYTES = 32 << 20


class LastWords:
    """Exchange of data through the store, since the groups of a failing run are aborted.

    Parameters
    ----------
    store
        Opens a separate connection to a store that all ranks can reach.
    rank
        Number of this rank.
    reachable
        Returns the other ranks that may still send data.
    """

    def __init__(self, store: Callable[[], Any], rank: int, reachable: Callable[[], Sequence[int]]) -> None:
        self._store = store
        self._rank = rank
        self._reachable = reachable
        self._deadline: float | None = None

    @property
    def is_for_this_rank(self) -> bool:
        """Whether this rank receives the data: the lowest rank that is not lost."""
        return all(self._rank < other for other in self._reachable())

    def leave(self, subject: str, data: bytes) -> Mapping[int, bytes]:
        """Send data, and return the data of all reachable ranks at the lowest of them (elsewhere: empty).

        All calls together take at most two seconds; data that arrive later are ignored.

        Parameters
        ----------
        subject
            Name of the data; each name can be used once.
        data
            Any bytes; more than 32 MiB are not sent.
        """
        is_receiver = self.is_for_this_rank
        reports = {self._rank: data} if is_receiver else {}
        if not self._reachable():
            return reports
        if self._deadline is None:
            self._deadline = time.monotonic() + _REPORT_WAIT_S
        # A store on an unreachable machine can block for minutes.
        worker = threading.Thread(
            target=self._collect if is_receiver else self._send,
            args=(subject, reports if is_receiver else data),
            name="hyrt.ranks.last",
            daemon=True,
        )
        worker.start()
        worker.join(max(0.0, self._deadline - time.monotonic()))
        return dict(sorted(reports.items()))

    def _send(self, subject: str, data: bytes) -> None:
        # If the store is lost, there is no reader either.
        with suppress(DistError, RuntimeError):
            if len(data) <= _MAX_REPORT_BYTES:
                self._store().set(_report_key(subject, self._rank), base64.b64encode(data).decode())

    def _collect(self, subject: str, reports: dict[int, bytes]) -> None:
        assert self._deadline is not None
        # If the store is lost, return the data received so far.
        with suppress(DistError, RuntimeError):
            store = self._store()
            while time.monotonic() < self._deadline:
                missing = [rank for rank in self._reachable() if rank not in reports]
                for rank in missing:
                    key = _report_key(subject, rank)
                    if store.check([key]):
                        reports[rank] = base64.b64decode(store.get(key))
                if not missing:
                    return
                time.sleep(_POLL_S)


def _report_key(subject: str, rank: int) -> str:
    return f"last/{subject}/{rank}"
