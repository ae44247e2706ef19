"""Rendezvous of ranks in a store that may be older than the ranks.

torchrun keeps one store for all its attempts, and its restart counts may differ between machines. After a
failure the keys of earlier processes are still in the store and must be distinguished from current keys.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

from hyrt.distributed.fellow_ranks import BEAT_S, SILENT_S
from hyrt.errors import ConfigError, RankLost, listed

_POLL_S = 0.02
_PUBLISH_S = 1.0
# After a rank has failed or is lost: time that rank 0 waits for ranks that have not joined yet.
_GRACE_S = 2.0


class Met(NamedTuple):
    """Result of a rendezvous of all ranks."""

    name: str
    """Unique name of this attempt; the same at all ranks."""
    restarts: int
    """Highest number of restarts of any rank; complete at rank 0 only."""


def meet(
    store: Any, rank: int, size: int, restarts: int, timeout_s: float, silent_s: float = SILENT_S
) -> Met:
    """Wait until all ranks of this attempt have joined.

    Each rank writes a unique token. Rank 0 publishes all tokens that it reads, until every other rank has
    found
    its token in the list and confirmed it with rank 0's token. Tokens of earlier processes are never
    confirmed.
    Meanwhile rank 0 sends heartbeats and checks the heartbeats of the ranks that have joined, under the keys
    of
    `FellowRanks`.

    Parameters
    ----------
    store
        A store that all ranks can reach, with `set`, `get` and `check`.
    rank, size
        Number of this rank, and number of ranks.
    restarts
        Number of restarts of this rank according to its launcher.
    timeout_s
        Longest time to wait, in seconds.
    silent_s
        Longest time without a heartbeat before rank 0 counts a rank as lost, in seconds.

    Raises
    ------
    RankLost
        If ranks did not join, or a rank failed or was lost meanwhile; names the ranks.
    ConfigError
        If the ranks have different numbers of ranks.
    """
    token = f"{uuid.uuid4().hex} {restarts}"
    end = time.monotonic() + timeout_s
    if rank == 0:
        return _confirm_tokens(store, token, size, end, timeout_s, silent_s)
    store.set(f"word/{rank}", token)
    while True:
        first, *others = _read(store, "words").split("\n")
        if token in others and len(others) != size - 1:
            store.set(f"heard/{rank}", f"{first}\n{size}")
            raise _size_mismatch(rank, size, len(others) + 1)
        if len(others) == size - 1 and others[rank - 1] == token:
            name = first.partition(" ")[0]
            # First heartbeat: if this rank exits right after joining, the other ranks detect it.
            store.set(f"{name}/beat/{rank}", "0 {}")
            store.set(f"heard/{rank}", first)
            return Met(name, restarts)
        if time.monotonic() > end:
            raise RankLost(f"rank 0 did not join within {timeout_s:g} s: {_JOIN_HINT}")
        time.sleep(_POLL_S)


_JOIN_HINT = (
    "check that all ranks have started, with the same number of machines and processes, MASTER_ADDR and "
    "MASTER_PORT, and that a firewall lets them through"
)


def _confirm_tokens(store: Any, token: str, size: int, end: float, timeout_s: float, silent_s: float) -> Met:
    others = range(1, size)
    name, published = token.partition(" ")[0], ""
    beats = _Heartbeats(store, name, silent_s)
    error: RankLost | None = None
    while True:
        confirmations = [_read(store, f"heard/{rank}") for rank in others]
        # Read after the confirmations: a rank that has confirmed wrote its token before.
        tokens = [token, *(_read(store, f"word/{rank}") for rank in others)]
        for rank, confirmation in zip(others, confirmations, strict=True):
            confirmed, _, other_size = confirmation.partition("\n")
            if confirmed == token and other_size:
                raise _size_mismatch(rank, int(other_size), size)
        if all(confirmation == token for confirmation in confirmations):
            return Met(name, max(int(confirmation.partition(" ")[2]) for confirmation in tokens))
        beats.send()
        if error is None:
            joined = [
                rank
                for rank, confirmation in zip(others, confirmations, strict=True)
                if confirmation == token
            ]
            error = beats.failure_among(joined)
            # Ranks that start a little later still join rank 0 and read the failure in the store.
            end = end if error is None else min(end, time.monotonic() + _GRACE_S)
        if published != (published := "\n".join(tokens)):
            store.set("words", published)
        if time.monotonic() > end:
            if error is not None:
                raise error
            late = [
                str(rank)
                for rank, confirmation in zip(others, confirmations, strict=True)
                if confirmation != token
            ]
            text = f"rank {listed(late)} did not join within {timeout_s:g} s: {_JOIN_HINT}"
            if len(late) < len(confirmations):
                # Joined ranks read the failure from the store like any other, while this process hosts the
                # store.
                store.set(f"{name}/lost", f"{late[0]}\n{text}")
                time.sleep(_PUBLISH_S)
            raise RankLost(text)
        time.sleep(_POLL_S)


class _Heartbeats:
    """Sends rank 0's heartbeats during the rendezvous and checks those of the ranks that have joined.

    Parameters
    ----------
    store
        Store of the rendezvous.
    name
        Name of the attempt.
    silent_s
        Longest time without a heartbeat, in seconds.
    """

    def __init__(self, store: Any, name: str, silent_s: float) -> None:
        self._store = store
        self._name = name
        self._silent_s = silent_s
        self._sent, self._sent_at = 0, 0.0
        self._received: dict[int, tuple[str, float]] = {}

    def send(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self._sent_at >= BEAT_S:
            self._sent, self._sent_at = self._sent + 1, time.monotonic()
            self._store.set(f"{self._name}/beat/0", f"{self._sent} {{}}")

    def failure_among(self, joined: list[int]) -> RankLost | None:
        """Return and publish the error if a rank has failed or sends no heartbeats."""
        failed, _, reason = _read(self._store, f"{self._name}/failure").partition("\n")
        if failed:
            return RankLost(f"rank {failed} failed: {reason}")
        now = time.monotonic()
        for rank in joined:
            beat = _read(self._store, f"{self._name}/beat/{rank}")
            previous, received_at = self._received.get(rank, ("", now))
            if beat != previous:
                self._received[rank] = (beat, now)
            elif now - received_at > self._silent_s:
                text = f"rank {rank} was lost: no heartbeat was received for {self._silent_s:g} s"
                self._store.set(f"{self._name}/lost", f"{rank}\n{text}")
                return RankLost(text)
        return None


def _size_mismatch(rank: int, size: int, first_size: int) -> ConfigError:
    return ConfigError(
        f"WORLD_SIZE is {size} at rank {rank}, but {first_size} at rank 0: start all ranks with the same "
        "number"
    )


def _read(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
