"""Heartbeats and failure detection between the ranks of a run, and an exchange of failure reports."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import DistError

from hyrt.errors import RankFailureError, describe_error, one_line

HEARTBEAT_S = 0.5
"""Interval of a rank's heartbeats, in seconds."""
# After a broken connection: time for a failed rank to publish the reason.
_FAILURE_REPORT_S = 2.5
# Longest time until a live rank acknowledges a failure, on a busy machine.
_ACKNOWLEDGE_S = 1.5
# Longest gap between two heartbeats that a live rank leaves: sending interval plus polling interval.
_HEARTBEAT_GAP_S = 3 * HEARTBEAT_S
MAX_SILENCE_S = 6.0
"""Seconds without a heartbeat after which a rank counts as lost; also the limit for the store."""


class HeartbeatMonitor:
    """Monitor that sends this rank's heartbeats through the store and detects failed ranks.

    When another rank is lost, `on_peer_failure` is called once, in a separate thread, with the error that
    ends the run. A rank counts as lost after `max_silence_s` seconds without a heartbeat. `store_host` names
    the process that hosts the store, for messages. `count_operations` returns the number of operations that
    this rank has started per group name, which each heartbeat includes.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        on_peer_failure: Callable[[RankFailureError], None],
        store_host: str,
        max_silence_s: float = MAX_SILENCE_S,
        count_operations: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._store = store
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._on_failure = on_peer_failure
        self._store_host = store_host
        self._silent_s = max_silence_s
        self._count_operations = count_operations
        self._stop = threading.Event()
        self._failure: RankFailureError | None = None
        self._has_failure = threading.Event()
        self._failed_rank: int | None = None
        self._has_lost_store = False
        self._lock = threading.Lock()
        self._heartbeats: dict[int, tuple[bytes, float]] = {}
        self._answered_at = time.monotonic()
        self._threads = [
            threading.Thread(target=self._send_heartbeats, name="hyrt.ranks", daemon=True),
            threading.Thread(target=self._watch_store, name="hyrt.ranks.silence", daemon=True),
        ]

    def start(self) -> None:
        """Start the heartbeat threads. A rank counts as lost only after its first heartbeat."""
        self._answered_at = time.monotonic()
        self._heartbeats = dict.fromkeys(self._others, (b"", math.inf))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads, which may be blocked in a call to an unresponsive store."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(0 if self._has_lost_store else _FAILURE_REPORT_S)

    def broadcast_failure(self, error: BaseException) -> None:
        """Publish why this rank has failed; only the first failure of all ranks is recorded."""
        try:
            self._store.compare_set("failure", "", f"{self._rank}\n{one_line(describe_error(error))}")
            self._acknowledge()
        except (DistError, RuntimeError):
            # The store is unreachable, which the other ranks detect themselves.
            return

    def wait_until_acknowledged(self) -> None:
        """Wait briefly until all other ranks have acknowledged the failure.

        The process that hosts the store calls this: without the store, the other ranks would only see that
        this rank has disappeared.
        """
        end, pending = time.monotonic() + _ACKNOWLEDGE_S, set(self._others)
        with contextlib.suppress(DistError, RuntimeError):
            while time.monotonic() < end:
                pending = {other for other in pending if not self._store.check([_acknowledgement_key(other)])}
                if not pending - {self._failed_rank}:
                    return
                time.sleep(HEARTBEAT_S / 20)

    def announce_shutdown(self) -> None:
        """Announce that this rank shuts down because the run is complete."""
        try:
            self._store.set(f"beat/{self._rank}", "done")
        except (DistError, RuntimeError):
            # Rank 0, which may host the store, has exited already.
            return

    @property
    def has_live_threads(self) -> bool:
        """Whether a thread is still blocked in a call to the store after `close`.

        At exit, Python would end such a thread inside torch's code, which aborts the process.
        """
        return any(thread.is_alive() for thread in self._threads)

    @property
    def peer_failure(self) -> RankFailureError | None:
        """Error that ends the run once another rank is lost, or None."""
        return self._failure

    def wait_for_peer_failure(self, seconds: float) -> RankFailureError | None:
        """Wait up to `seconds` for another rank to be lost; return the error that ends the run, or None."""
        self._has_failure.wait(seconds)
        return self._failure

    @property
    def reachable(self) -> list[int]:
        """Other ranks that are not known to be lost; empty if the store is lost."""
        return [] if self._has_lost_store else [other for other in self._others if other != self._failed_rank]

    def diagnose_failure(self, operation: str, error: Exception, group: str = "") -> RankFailureError:
        """Return the cause of a failed operation, after a brief wait for failure reports.

        `error` is torch's error. The operation counts of `group` (its name, or "") show which rank is late.
        """
        started_at = time.monotonic()
        # Strip torch's source location prefix and its speculative explanation.
        text = re.sub(r"^\[[^]]*\] ", "", one_line(str(error)).partition(" This is typically")[0])
        is_late = re.search(r"timed out|timeout", text, re.IGNORECASE) is not None
        while self._failure is None:
            waited_s = time.monotonic() - started_at
            silent = self._silent_ranks() if waited_s > _FAILURE_REPORT_S else []
            late = self._slowest_ranks(group) if waited_s > _FAILURE_REPORT_S and is_late else []
            if len(silent) == 1:
                self._record_failure(
                    RankFailureError(f"rank {silent[0]} was lost: it ended without a report ({text})"),
                    silent[0],
                )
            elif len(late) == 1:
                self._record_failure(
                    RankFailureError(f"rank {late[0]} did not reach {operation}: {text}"), late[0]
                )
            elif waited_s > self._silent_s + _HEARTBEAT_GAP_S:
                self._record_failure(
                    RankFailureError(f"connections between ranks were lost at {operation}: {text}")
                )
            else:
                self._has_failure.wait(HEARTBEAT_S / 5)
        return self._failure

    def _silent_ranks(self) -> list[int]:
        """Return the ranks without a recent heartbeat, relative to this rank's last successful poll."""
        since = self._answered_at - _HEARTBEAT_GAP_S
        return [other for other, (_, received_at) in self._heartbeats.items() if received_at < since]

    def _slowest_ranks(self, group: str) -> list[int]:
        """Return the ranks that have started the fewest operations of a group, if fewer than this rank."""
        counts = {other: _operation_counts(beat).get(group) for other, (beat, _) in self._heartbeats.items()}
        known = {other: count for other, count in counts.items() if count is not None}
        lowest = min(known.values(), default=0)
        if lowest >= self._count_operations().get(group, 0):
            return []
        return [other for other, count in known.items() if count == lowest]

    def _record_failure(self, failure: RankFailureError, rank: int | None = None) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failed_rank = rank
            self._failure = failure
        self._has_failure.set()
        if rank is not None:
            self._publish_failure(failure, rank)
        self._on_failure(failure)

    def _publish_failure(self, failure: RankFailureError, rank: int) -> None:
        """Publish that another rank is lost: several ranks may soon fail as a consequence."""

        def publish() -> None:
            with contextlib.suppress(DistError, RuntimeError):
                self._store.compare_set("lost", "", f"{rank}\n{failure}")

        publisher = threading.Thread(target=publish, name="hyrt.ranks.loss", daemon=True)
        publisher.start()
        publisher.join(HEARTBEAT_S)

    def _send_heartbeats(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self._store.set(
                    f"beat/{self._rank}", f"{number} {json.dumps(dict(self._count_operations()))}"
                )
                self._check_peers()
                if self._failure is not None:
                    self._acknowledge()
            except (DistError, RuntimeError) as error:
                if not self._stop.is_set():
                    text = one_line(str(error))
                    self._has_lost_store = True
                    self._record_failure(
                        RankFailureError(f"{self._store_host} was lost: it hosts the ranks' store ({text})")
                    )
                return
            self._answered_at = time.monotonic()
            self._stop.wait(HEARTBEAT_S)

    def _acknowledge(self) -> None:
        self._store.set(_acknowledgement_key(self._rank), "")

    def _check_peers(self) -> None:
        if self._store.check(["failure"]):
            rank, _, reason = self._store.get("failure").decode().partition("\n")
            if rank and int(rank) != self._rank:
                self._record_failure(RankFailureError(f"rank {rank} failed: {reason}"))
        if self._store.check(["lost"]):
            rank, _, reason = self._store.get("lost").decode().partition("\n")
            if rank and int(rank) != self._rank:
                self._record_failure(RankFailureError(reason), int(rank))
            elif rank:
                self._record_failure(
                    RankFailureError(
                        f"the other ranks continue without rank {rank}, which is this rank: {reason}"
                    )
                )
        now = time.monotonic()
        for other in self._others:
            key = f"beat/{other}"
            beat = self._store.get(key) if self._store.check([key]) else b""
            previous, received_at = self._heartbeats[other]
            if beat == b"done" or beat != previous:
                self._heartbeats[other] = (beat, now)
            elif now - received_at > self._silent_s:
                silent = f"no heartbeat was received for {self._silent_s:g} s"
                self._record_failure(RankFailureError(f"rank {other} was lost: {silent}"), other)

    def _watch_store(self) -> None:
        # Use a separate thread, because a call to a store on an unreachable machine can block for minutes.
        while not self._stop.wait(HEARTBEAT_S):
            silent_s = time.monotonic() - self._answered_at
            if silent_s > self._silent_s + HEARTBEAT_S:
                self._has_lost_store = True
                self._record_failure(
                    RankFailureError(
                        f"{self._store_host} was lost: it hosts the ranks' store, which has not answered "
                        f"for {silent_s:.0f} s"
                    )
                )
                return


def _acknowledgement_key(rank: int) -> str:
    return f"knows/{rank}"


def _operation_counts(beat: bytes) -> Mapping[str, int]:
    """Return the number of operations that a rank has started per group, from its last heartbeat."""
    text = beat.decode().partition(" ")[2]
    counts: dict[str, int] = json.loads(text) if text else {}
    return counts


# All ranks must exit within seconds of the failure, and detecting it has taken some of that time.
_REPORT_WAIT_S = 2.0
_POLL_S = 0.02
# Larger values would delay heartbeats in the store.
_MAX_REPORT_BYTES = 32 << 20


class FailureReportExchange:
    """Exchange of data through the store, for use in a failing run, in which the groups are aborted.

    `store` opens a separate connection. `reachable` returns the other ranks that may still send data.
    """

    def __init__(self, store: Callable[[], Any], rank: int, reachable: Callable[[], Sequence[int]]) -> None:
        self._store = store
        self._rank = rank
        self._reachable = reachable
        self._deadline: float | None = None

    @property
    def is_receiver(self) -> bool:
        """Whether this rank receives the data because it is the lowest rank that is not lost."""
        return all(self._rank < other for other in self._reachable())

    def exchange(self, subject: str, data: bytes) -> Mapping[int, bytes]:
        """Send data to the lowest reachable rank; return all received data there, and nothing elsewhere.

        All calls together take at most two seconds, and later data are ignored. Data of more than 32 MiB are
        not sent. Each `subject` can be used only once.
        """
        is_receiver = self.is_receiver
        reports = {self._rank: data} if is_receiver else {}
        if not self._reachable():
            return reports
        if self._deadline is None:
            self._deadline = time.monotonic() + _REPORT_WAIT_S
        # A call to a store on an unreachable machine can block for minutes.
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
        # If the store is lost, no rank can read the data.
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
