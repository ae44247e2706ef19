"""How ranks that a launcher has just started find each other in a store that may be older than they are.

torchrun keeps one store for all its attempts, and the numbers of restarts that it tells may differ from
machine to machine: after a failure, what earlier processes wrote is still there, and has to be told from what
is new.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

from hyrt.errors import ConfigError, RankLost, listed

_AGAIN_S = 0.02
_TOLD_S = 1.0


class Met(NamedTuple):
    """What ranks know of each other when all have come."""

    name: str
    """A name that no other attempt has; the same at all ranks."""
    restarts: int
    """How often one of them has been started again, at most. Only rank 0 knows it of all."""


def meet(store: Any, rank: int, size: int, restarts: int, timeout_s: float) -> Met:
    """Wait until all ranks of this attempt have come.

    Each rank says a word that nobody has used before. Rank 0 repeats all words that it finds, until each of
    the others has found its own among them and says so with rank 0's word: what earlier processes have
    written is part of neither.

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

    Raises
    ------
    RankLost
        Naming the ranks that did not come.
    ConfigError
        If ranks were told different numbers of ranks.
    """
    word = f"{uuid.uuid4().hex} {restarts}"
    end = time.monotonic() + timeout_s
    if rank == 0:
        return _repeat_words(store, word, size, end, timeout_s)
    store.set(f"word/{rank}", word)
    while True:
        first, *others = _read(store, "words").split("\n")
        if word in others and len(others) != size - 1:
            store.set(f"heard/{rank}", f"{first}\n{size}")
            raise _other_size(rank, size, len(others) + 1)
        if len(others) == size - 1 and others[rank - 1] == word:
            store.set(f"heard/{rank}", first)
            return Met(first.partition(" ")[0], restarts)
        if time.monotonic() > end:
            raise RankLost(f"rank 0 did not come within {timeout_s:g} s: {_REMEDY}")
        time.sleep(_AGAIN_S)


_REMEDY = (
    "check that all ranks have started, with the same number of machines and processes, MASTER_ADDR and "
    "MASTER_PORT, and that a firewall lets them through"
)


def _repeat_words(store: Any, word: str, size: int, end: float, timeout_s: float) -> Met:
    others = range(1, size)
    said = ""
    while True:
        heard = [_read(store, f"heard/{rank}") for rank in others]
        # Read after that: whoever has heard has said its word before.
        words = [word, *(_read(store, f"word/{rank}") for rank in others)]
        for rank, each in zip(others, heard, strict=True):
            whose, _, other_size = each.partition("\n")
            if whose == word and other_size:
                raise _other_size(rank, int(other_size), size)
        if all(each == word for each in heard):
            return Met(word.partition(" ")[0], max(int(each.partition(" ")[2]) for each in words))
        if said != (said := "\n".join(words)):
            store.set("words", said)
        if time.monotonic() > end:
            late = [str(rank) for rank, each in zip(others, heard, strict=True) if each != word]
            text = f"rank {listed(late)} did not come within {timeout_s:g} s: {_REMEDY}"
            if len(late) < len(heard):
                # Those that have come hear it there as fellow ranks do, while this process keeps the store.
                store.set(f"{word.partition(' ')[0]}/lost", f"{late[0]}\n{text}")
                time.sleep(_TOLD_S)
            raise RankLost(text)
        time.sleep(_AGAIN_S)


def _other_size(rank: int, size: int, first_size: int) -> ConfigError:
    return ConfigError(
        f"WORLD_SIZE is {size} at rank {rank}, but {first_size} at rank 0: start all ranks with the same "
        "number"
    )


def _read(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
