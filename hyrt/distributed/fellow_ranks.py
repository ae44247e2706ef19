"""What the ranks of a run know of each other: who is alive, who has failed, and why."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed import DistError

from hyrt.errors import RankLost, describe, one_line

BEAT_S = 0.5
"""Seconds between two heartbeats of a rank."""
# After a connection has broken: how long a rank that failed may take to say so.
_LAST_WORDS_S = 2.5
# How long a rank that lives takes to hear of a failure, at most, on a busy machine.
_KNOWN_S = 1.5
# For how long nothing is heard of a rank that lives, at most: between two beats, and until they are read.
_BETWEEN_S = 3 * BEAT_S
SILENT_S = 6.0
"""For how long nothing may be heard of a rank, or of the store."""


class FellowRanks:
    """Tells the other ranks that this one lives, and hears of those that do not any more.

    Parameters
    ----------
    store
        A store that all ranks reach.
    rank, size
        The number of this rank, and how many there are.
    on_loss
        Called once, in a thread of its own, with the error to end with when another rank is lost.
    keeper
        Whose process keeps the store, for messages.
    silent_s
        For how long nothing may be heard of a rank before it counts as lost.
    begun
        Gives how many operations this rank has begun in each group, by its name, which the others are told.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        on_loss: Callable[[RankLost], None],
        keeper: str,
        silent_s: float = SILENT_S,
        begun: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._store = store
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._on_loss = on_loss
        self._keeper = keeper
        self._silent_s = silent_s
        self._begun = begun
        self._stop = threading.Event()
        self._loss: RankLost | None = None
        self._is_lost = threading.Event()
        self._lost: int | None = None
        self._is_store_lost = False
        self._lock = threading.Lock()
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._answered = time.monotonic()
        self._threads = [
            threading.Thread(target=self._beat, name="hyrt.ranks", daemon=True),
            threading.Thread(target=self._listen, name="hyrt.ranks.silence", daemon=True),
        ]

    def start(self) -> None:
        """Begin to tell and to hear; a rank that was never heard is not there yet."""
        self._answered = time.monotonic()
        self._heard = dict.fromkeys(self._others, (b"", math.inf))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads; they may be in a call to a store that does not answer."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(0 if self._is_store_lost else _LAST_WORDS_S)

    def tell_failure(self, error: BaseException) -> None:
        """Tell the others why this rank fails; the first failure of all ranks is the one that counts."""
        try:
            self._store.compare_set("failure", "", f"{self._rank}\n{one_line(describe(error))}")
            self._say_known()
        except (DistError, RuntimeError):
            # Nobody can be told: the others find the store silent, too.
            return

    def wait_until_known(self) -> None:
        """Wait a moment until all others know that the run fails: they read it where this process keeps it.

        Without the store they would know no more than that this rank is gone.
        """
        end, unsaid = time.monotonic() + _KNOWN_S, set(self._others)
        with contextlib.suppress(DistError, RuntimeError):
            while time.monotonic() < end:
                unsaid = {other for other in unsaid if not self._store.check([_known(other)])}
                if not unsaid - {self._lost}:
                    return
                time.sleep(BEAT_S / 20)

    def tell_end(self) -> None:
        """Tell the others that this rank leaves because all is done."""
        try:
            self._store.set(f"beat/{self._rank}", "done")
        except (DistError, RuntimeError):
            # Rank 0, whose process may keep the store, has not waited any longer: nobody is left to be told.
            return

    @property
    def is_left_behind(self) -> bool:
        """Whether a thread is still in a call to the store, after `close`.

        Python ends such threads when it ends, inside torch's code, which aborts the process for that.
        """
        return any(thread.is_alive() for thread in self._threads)

    @property
    def known_loss(self) -> RankLost | None:
        """The error to end with, once another rank is lost."""
        return self._loss

    def loss_within(self, seconds: float) -> RankLost | None:
        """The error to end with, if another rank is lost within so many seconds."""
        self._is_lost.wait(seconds)
        return self._loss

    @property
    def reachable(self) -> list[int]:
        """The other ranks that are not known to be lost, while there is a store to reach them by."""
        return [] if self._is_store_lost else [other for other in self._others if other != self._lost]

    def loss(self, doing: str, error: Exception, group: str = "") -> RankLost:
        """Why an operation with the others failed: waits a moment for what they say.

        Parameters
        ----------
        doing
            The operation.
        error
            What torch raised.
        group
            The name of its group, if it is of one: it may be known who has not come to it.
        """
        began = time.monotonic()
        # Without the place in torch's sources, and its guess.
        text = re.sub(r"^\[[^]]*\] ", "", one_line(str(error)).partition(" This is typically")[0])
        is_late = re.search(r"timed out|timeout", text, re.IGNORECASE) is not None
        while self._loss is None:
            waited_s = time.monotonic() - began
            gone = self._gone() if waited_s > _LAST_WORDS_S else []
            late = self._last_in(group) if waited_s > _LAST_WORDS_S and is_late else []
            if len(gone) == 1:
                self._lose(RankLost(f"rank {gone[0]} was lost: it ended without a word ({text})"), gone[0])
            elif len(late) == 1:
                self._lose(RankLost(f"rank {late[0]} did not come to {doing}: {text}"), late[0])
            elif waited_s > self._silent_s + _BETWEEN_S:
                self._lose(RankLost(f"the ranks lost each other at {doing}: {text}"))
            else:
                self._is_lost.wait(BEAT_S / 5)
        return self._loss

    def _gone(self) -> list[int]:
        """Ranks that were not heard of when the others were: on a busy machine, this one may read late."""
        since = self._answered - _BETWEEN_S
        return [other for other, (_, at) in self._heard.items() if at < since]

    def _last_in(self, group: str) -> list[int]:
        """The ranks that have begun the fewest operations of a group, if fewer than this one."""
        said = {other: _begun_by(beat).get(group) for other, (beat, _) in self._heard.items()}
        known = {other: count for other, count in said.items() if count is not None}
        least = min(known.values(), default=0)
        if least >= self._begun().get(group, 0):
            return []
        return [other for other, count in known.items() if count == least]

    def _lose(self, loss: RankLost, rank: int | None = None) -> None:
        with self._lock:
            if self._loss is not None:
                return
            self._lost = rank
            self._loss = loss
        self._is_lost.set()
        if rank is not None:
            self._tell_loss(loss, rank)
        self._on_loss(loss)

    def _tell_loss(self, loss: RankLost, rank: int) -> None:
        """Tell the others, who find more than one of them gone soon: those that end for this loss."""

        def tell() -> None:
            with contextlib.suppress(DistError, RuntimeError):
                self._store.compare_set("lost", "", f"{rank}\n{loss}")

        telling = threading.Thread(target=tell, name="hyrt.ranks.loss", daemon=True)
        telling.start()
        telling.join(BEAT_S)

    def _beat(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self._store.set(f"beat/{self._rank}", f"{number} {json.dumps(dict(self._begun()))}")
                self._hear()
                if self._loss is not None:
                    self._say_known()
            except (DistError, RuntimeError) as error:
                if not self._stop.is_set():
                    text = one_line(str(error))
                    self._is_store_lost = True
                    self._lose(RankLost(f"{self._keeper} was lost: it keeps the store of the ranks ({text})"))
                return
            self._answered = time.monotonic()
            self._stop.wait(BEAT_S)

    def _say_known(self) -> None:
        self._store.set(_known(self._rank), "")

    def _hear(self) -> None:
        if self._store.check(["failure"]):
            rank, _, why = self._store.get("failure").decode().partition("\n")
            if rank and int(rank) != self._rank:
                self._lose(RankLost(f"rank {rank} failed: {why}"))
        if self._store.check(["lost"]):
            rank, _, why = self._store.get("lost").decode().partition("\n")
            if rank and int(rank) != self._rank:
                self._lose(RankLost(why), int(rank))
            elif rank:
                self._lose(RankLost(f"the others go on without rank {rank}, which is this one: {why}"))
        now = time.monotonic()
        for other in self._others:
            key = f"beat/{other}"
            beat = self._store.get(key) if self._store.check([key]) else b""
            before, at = self._heard[other]
            if beat == b"done" or beat != before:
                self._heard[other] = (beat, now)
            elif now - at > self._silent_s:
                silent = f"nothing was heard of it for {self._silent_s:g} s"
                self._lose(RankLost(f"rank {other} was lost: {silent}"), other)

    def _listen(self) -> None:
        # A call to a store whose machine is gone may not return for minutes.
        while not self._stop.wait(BEAT_S):
            silent_s = time.monotonic() - self._answered
            if silent_s > self._silent_s + BEAT_S:
                self._is_store_lost = True
                self._lose(
                    RankLost(
                        f"{self._keeper} was lost: it keeps the store of the ranks, which has not answered "
                        f"for {silent_s:.0f} s"
                    )
                )
                return


def _known(rank: int) -> str:
    """The key that a rank sets once it knows that the run fails."""
    return f"knows/{rank}"


def _begun_by(beat: bytes) -> Mapping[str, int]:
    """How many operations a rank has begun in each group, as its last beat says."""
    text = beat.decode().partition(" ")[2]
    begun: dict[str, int] = json.loads(text) if text else {}
    return begun
