"""How ranks that a launcher has just started find each other in a store that may be older than they are.

torchrun keeps one store for all its attempts, and the numbers of restarts that it tells may differ from
machine to machine: after a failure, what earlier processes wrote is still there, and has to be told from what
is new.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

from hyrt.distributed.fellow_ranks import BEAT_S, SILENT_S
from hyrt.errors import ConfigError, RankLost, listed

_AGAIN_S = 0.02
_TOLD_S = 1.0
# After a rank has failed or been lost: how long rank 0 waits for ranks that have not come yet.
_GRACE_S = 2.0


class Met(NamedTuple):
    """What ranks know of each other when all have come."""

    name: str
    """A name that no other attempt has; the same at all ranks."""
    restarts: int
    """How often one of them has been started again, at most. Only rank 0 knows it of all."""


def meet(
    store: Any, rank: int, size: int, restarts: int, timeout_s: float, silent_s: float = SILENT_S
) -> Met:
    """Wait until all ranks of this attempt have come.

    Each rank says a word that nobody has used before. Rank 0 repeats all words that it finds, until each of
    the others has found its own among them and says so with rank 0's word: what earlier processes have
    written is part of neither. Meanwhile rank 0 sends heartbeats and watches those of the ranks that have
    come, under the keys of `FellowRanks`.

    Parameters
    ----------
    store
        A store that all ranks reach, with `set`, `get` and `check`.
    rank, size
        The number of this rank, and how many there are.
    restarts
        How often this one has been started again, as far as its launcher says.
    timeout_s
        Longest time to wait.
    silent_s
        Longest time without a heartbeat before rank 0 counts a rank as lost.

    Raises
    ------
    RankLost
        Naming the ranks that did not come, or the rank that has failed or been lost meanwhile.
    ConfigError
        If ranks were told different numbers of ranks.
    """
    word = f"{uuid.uuid4().hex} {restarts}"
    end = time.monotonic() + timeout_s
    if rank == 0:
        return _repeat_words(store, word, size, end, timeout_s, silent_s)
    store.set(f"word/{rank}", word)
    while True:
        first, *others = _read(store, "words").split("\n")
        if word in others and len(others) != size - 1:
            store.set(f"heard/{rank}", f"{first}\n{size}")
            raise _other_size(rank, size, len(others) + 1)
        if len(others) == size - 1 and others[rank - 1] == word:
            name = first.partition(" ")[0]
            # The first heartbeat: a rank that ends right after this is missed by the others.
            store.set(f"{name}/beat/{rank}", "0 {}")
            store.set(f"heard/{rank}", first)
            return Met(name, restarts)
        if time.monotonic() > end:
            raise RankLost(f"rank 0 did not come within {timeout_s:g} s: {_REMEDY}")
        time.sleep(_AGAIN_S)


_REMEDY = (
    "check that all ranks have started, with the same number of machines and processes, MASTER_ADDR and "
    "MASTER_PORT, and that a firewall lets them through"
)


def _repeat_words(store: Any, word: str, size: int, end: float, timeout_s: float, silent_s: float) -> Met:
    others = range(1, size)
    name, said = word.partition(" ")[0], ""
    beats = _Heartbeats(store, name, silent_s)
    error: RankLost | None = None
    while True:
        heard = [_read(store, f"heard/{rank}") for rank in others]
        # Read after that: whoever has heard has said its word before.
        words = [word, *(_read(store, f"word/{rank}") for rank in others)]
        for rank, each in zip(others, heard, strict=True):
            whose, _, other_size = each.partition("\n")
            if whose == word and other_size:
                raise _other_size(rank, int(other_size), size)
        if all(each == word for each in heard):
            return Met(name, max(int(each.partition(" ")[2]) for each in words))
        beats.send()
        if error is None:
            came = [rank for rank, each in zip(others, heard, strict=True) if each == word]
            error = beats.failure_among(came)
            # Ranks that start a little later are to meet this one, and read the same.
            end = end if error is None else min(end, time.monotonic() + _GRACE_S)
        if said != (said := "\n".join(words)):
            store.set("words", said)
        if time.monotonic() > end:
            if error is not None:
                raise error
            late = [str(rank) for rank, each in zip(others, heard, strict=True) if each != word]
            text = f"rank {listed(late)} did not come within {timeout_s:g} s: {_REMEDY}"
            if len(late) < len(heard):
                # Those that have come hear it there as fellow ranks do, while this process keeps the store.
                store.set(f"{name}/lost", f"{late[0]}\n{text}")
                time.sleep(_TOLD_S)
            raise RankLost(text)
        time.sleep(_AGAIN_S)


class _Heartbeats:
    """Sends rank 0's heartbeats while it waits for ranks to come, and watches the ranks that have come.

    Parameters
    ----------
    store
        The store in which the ranks meet.
    name
        The name of the attempt.
    silent_s
        Longest time without a heartbeat.
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

    def failure_among(self, came: list[int]) -> RankLost | None:
        """Return the error if a rank has failed or sends no heartbeats; the others read it in the store."""
        failed, _, reason = _read(self._store, f"{self._name}/failure").partition("\n")
        if failed:
            return RankLost(f"rank {failed} failed: {reason}")
        now = time.monotonic()
        for rank in came:
            beat = _read(self._store, f"{self._name}/beat/{rank}")
            before, at = self._received.get(rank, ("", now))
            if beat != before:
                self._received[rank] = (beat, now)
            elif now - at > self._silent_s:
                text = f"rank {rank} was lost: nothing was heard of it for {self._silent_s:g} s"
                self._store.set(f"{self._name}/lost", f"{rank}\n{text}")
                return RankLost(text)
        return None


def _other_size(rank: int, size: int, first_size: int) -> ConfigError:
    return ConfigError(
        f"WORLD_SIZE is {size} at rank {rank}, but {first_size} at rank 0: start all ranks with the same "
        "number"
    )


def _read(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
