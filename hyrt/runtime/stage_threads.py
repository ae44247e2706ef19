"""Bounded channels, and the stage threads that they connect, with shared failure handling and a watchdog."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from hyrt.errors import StageError, StallError, describe_error

T = TypeVar("T")


class ChannelClosedError(Exception):
    """Error of `get` at the end of the stream, and of `put` if the receiver has closed its end."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Counters of a channel since its creation.

    `send_blocked_s` and `receive_blocked_s` are the total waiting times of the two ends, and `sends_blocked`
    and `receives_blocked` count the waits. `peak` is the highest occupancy. `item_s` is the total time that
    items have spent in the channel; divided by the elapsed time, it is the mean occupancy.
    """

    capacity: int
    occupancy: int
    peak: int
    sent: int
    received: int
    sends_blocked: int
    receives_blocked: int
    send_blocked_s: float
    receive_blocked_s: float
    item_s: float


class Channel(Generic[T]):
    """Bounded first-in first-out queue with two ends.

    If the sender closes its end, the stream ends after the queued items. If the receiver closes its end, the
    next `put` raises an error. `fail` makes both ends raise an error at once. `on_change` is called with the
    number of queued items after every change.
    """

    def __init__(self, name: str, capacity: int, on_change: Callable[[int], None] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"channel {name}: capacity must be at least 1, got {capacity}")
        self.name = name
        self._capacity = capacity
        self._watch = on_change
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._sender_closed = False
        self._receiver_closed = False
        self._failure: BaseException | None = None
        self._peak = self._sent = self._received = 0
        self._sends_blocked = self._receives_blocked = 0
        # To measure an interval, subtract its start time from the sum when it begins, and add its end time
        # when it ends. An interval in progress has only subtracted its start time.
        self._send_blocked_s = self._receive_blocked_s = self._item_s = 0.0
        self._senders_waiting = self._receivers_waiting = 0

    def put(self, item: T) -> None:
        """Send an item, and block while the channel is full.

        Raises ChannelClosedError if the receiver has closed its end.
        """
        with self._changed:
            if self._must_wait_to_send():
                self._sends_blocked += 1
                self._senders_waiting += 1
                self._send_blocked_s -= time.perf_counter()
                while self._must_wait_to_send():
                    self._changed.wait()
                self._send_blocked_s += time.perf_counter()
                self._senders_waiting -= 1
            self._raise_failure()
            if self._receiver_closed:
                raise ChannelClosedError(f"channel {self.name}: the receiver has closed")
            if self._sender_closed:
                raise ChannelClosedError(f"channel {self.name}: put after close")
            self._item_s -= time.perf_counter()
            self._items.append(item)
            self._sent += 1
            self._peak = max(self._peak, len(self._items))
            if self._watch is not None:
                self._watch(len(self._items))
            self._changed.notify_all()

    def get(self) -> T:
        """Receive the next item, and block while the channel is empty.

        Raises ChannelClosedError if the sender has closed its end and no items are left.
        """
        with self._changed:
            if self._must_wait_to_receive():
                self._receives_blocked += 1
                self._receivers_waiting += 1
                self._receive_blocked_s -= time.perf_counter()
                while self._must_wait_to_receive():
                    self._changed.wait()
                self._receive_blocked_s += time.perf_counter()
                self._receivers_waiting -= 1
            self._raise_failure()
            if not self._items:
                raise ChannelClosedError(f"channel {self.name}: the stream has ended")
            self._item_s += time.perf_counter()
            item = self._items.popleft()
            self._received += 1
            if self._watch is not None:
                self._watch(len(self._items))
            self._changed.notify_all()
            return item

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                item = self.get()
            except ChannelClosedError:
                return
            yield item

    def close_sender(self) -> None:
        """Close the sending end. Queued items can still be received."""
        with self._changed:
            self._sender_closed = True
            self._changed.notify_all()

    def close_receiver(self) -> None:
        """Close the receiving end: drop all queued items, and make the next `put` raise an error."""
        with self._changed:
            self._receiver_closed = True
            self._item_s += time.perf_counter() * len(self._items)
            self._items.clear()
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Raise `failure` at both ends from now on. Later failures are ignored."""
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()

    def statistics(self) -> ChannelStatistics:
        with self._changed:
            now = time.perf_counter()
            return ChannelStatistics(
                self._capacity,
                len(self._items),
                self._peak,
                self._sent,
                self._received,
                self._sends_blocked,
                self._receives_blocked,
                self._send_blocked_s + now * self._senders_waiting,
                self._receive_blocked_s + now * self._receivers_waiting,
                self._item_s + now * len(self._items),
            )

    def _must_wait_to_send(self) -> bool:
        return (
            len(self._items) >= self._capacity
            and self._failure is None
            and not self._receiver_closed
            and not self._sender_closed
        )

    def _must_wait_to_receive(self) -> bool:
        return (
            not self._items
            and self._failure is None
            and not self._sender_closed
            and not self._receiver_closed
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """Snapshot of the counters of several channels."""

    time_s: float
    """Time of the snapshot by `time.perf_counter`, in seconds."""
    blocked_s: Mapping[str, float]
    """Blocked seconds of each stage (mean over its threads), with keys `<stage>.input` and `<stage>.output`.
    """
    item_s: Mapping[str, float]
    """Total seconds that items have spent in each channel, by channel name."""
    capacity: Mapping[str, int]

    def mean_items_since(self, before: QueueSnapshot) -> dict[str, float]:
        """Return the mean number of items in each channel since an earlier snapshot."""
        elapsed_s = self.time_s - before.time_s
        if elapsed_s <= 0:
            return {}
        return {name: (total - before.item_s[name]) / elapsed_s for name, total in self.item_s.items()}


class Watchdog:
    """Watchdog that detects if an activity counter does not change while the consumer waits.

    `activity` returns a number that changes with any progress. `is_waiting` returns whether the consumer is
    waiting: while it works, nothing counts as a stall. After `timeout_s` seconds without a change, `on_stall`
    is called once with the stacks of all threads.
    """

    def __init__(
        self,
        timeout_s: float,
        activity: Callable[[], int],
        is_waiting: Callable[[], bool],
        on_stall: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._activity = activity
        self._waiting = is_waiting
        self._on_stall = on_stall
        self._clock = clock
        self._seen = -1
        self._since = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hyrt.guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def check(self, late_s: float = 0.0) -> bool:
        """Check for progress once; return True if the run has stalled.

        `late_s` is the delay of this check. The process was stopped or the machine slept, so no progress was
        possible in this time.
        """
        now = self._clock()
        self._since += late_s
        activity = self._activity()
        if activity != self._seen or not self._waiting():
            self._seen = activity
            self._since = now
            return False
        return now - self._since >= self._timeout_s

    def _watch(self) -> None:
        pause_s = min(1.0, self._timeout_s / 4)
        last_check = self._clock()
        while not self._stop.wait(pause_s):
            now = self._clock()
            # A busy machine may delay a check by one interval, during which progress is possible.
            late_s = now - last_check - 2 * pause_s
            last_check = now
            if self.check(max(0.0, late_s)):
                self._on_stall(format_thread_stacks())
                return


def format_thread_stacks() -> str:
    """Return the formatted stacks of all threads, with thread names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, ident)}\n{stack}")
    return "\n".join(parts)


# A healthy stage ends within one step after its channels fail, and users are promised an end within 5 s.
_JOIN_S = 5.0
# A thread that has hung for the whole stall timeout is unlikely to recover. Other threads end at once.
_JOIN_AFTER_STALL_S = 1.0


class StageProgress:
    """Current work of a stage thread, updated by the thread itself.

    `recent` is the log of started steps, which is included in reports of stalls.
    """

    def __init__(self, stage: str, device: str, recent: deque[tuple[str, str, int]]) -> None:
        self._default_stage = self._stage = stage
        self.device = device
        self._recent = recent
        self._step = -1

    def begin_step(self, step: int, stage: str = "") -> None:
        """Record that the thread starts a step; if `stage` is not empty, the thread is now in this stage."""
        self._stage, self._step = stage or self._default_stage, step
        self._recent.append((self._stage, self.device, step))

    @property
    def has_started(self) -> bool:
        """Whether the thread has started any step."""
        return self._step >= 0

    def __str__(self) -> str:
        return f"{self._stage} on {self.device} at step {self._step}"


class StageThreads:
    """Threads of a pipeline's stages, and the channels between stages.

    The first failure fails every channel, so that every thread ends, and the consumer raises it. `close`
    joins all threads within a time limit, and raises an error that names a thread that exceeds it.

    After `stall_timeout_s` seconds without progress while the consumer waits, `on_stall` is called with the
    stacks of all threads, and then `explain_stall`, which returns the failure that blocks the threads, or
    None if it is unknown. `on_failure` is called with the first failure, in the thread that failed.
    `channel_observer` returns the occupancy callback of a named channel, or None. `on_close` is called before
    the threads are joined, and must wake threads that wait for something other than a channel, so that these
    raise `ChannelClosedError`.
    """

    def __init__(
        self,
        *,
        stall_timeout_s: float,
        on_stall: Callable[[str], None],
        on_failure: Callable[[BaseException], None] = lambda failure: None,
        explain_stall: Callable[[], BaseException | None] = lambda: None,
        channel_observer: Callable[[str], Callable[[int], None] | None] = lambda name: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_close = on_close
        self._timeout_s = stall_timeout_s
        self._report_stall = on_stall
        self._report_failure = on_failure
        self._cause_of_stall = explain_stall
        self._watch = channel_observer
        self._channels: list[Channel[Any]] = []
        self._threads: dict[threading.Thread, StageProgress] = {}
        self._failure: BaseException | None = None
        self._failing = threading.Lock()
        self._is_closing = False
        self._recent: deque[tuple[str, str, int]] = deque(maxlen=32)
        self._consumer_waits = False
        self._consumer_does = ""
        self._moves = 0
        self._guard = Watchdog(stall_timeout_s, self._activity, lambda: self._consumer_waits, self._stalled)

    def add_channel(self, name: str, capacity: int) -> Channel[Any]:
        """Create a channel that fails together with the other channels."""
        channel: Channel[Any] = Channel(name, capacity, self._watch(name))
        self._channels.append(channel)
        return channel

    def add_thread(self, name: str, stage: str, device: str, body: Callable[[StageProgress], None]) -> None:
        """Add a thread, which starts with the others; `body` reports its progress in the `StageProgress`."""
        place = StageProgress(stage, device, self._recent)

        def run() -> None:
            try:
                body(place)
            except BaseException as error:
                if error is self._failure or (isinstance(error, ChannelClosedError) and self._is_closing):
                    return
                if isinstance(error, StageError):
                    # The message of this error already names stage, device and step.
                    self._fail(error)
                    return
                failure = StageError(
                    f"error in {place}: {describe_error(error).removeprefix(f'{place.device}: ')}"
                )
                failure.__cause__ = error
                self._fail(failure)

        self._threads[threading.Thread(target=run, name=name, daemon=True)] = place

    @contextmanager
    def consumer_waiting(self, doing: str = "") -> Iterator[None]:
        """Within the block, treat the consumer as waiting for the threads, or as busy with bounded work."""
        self._consumer_does = doing
        self._consumer_waits = True
        try:
            yield
        finally:
            self._consumer_waits = False
            self._consumer_does = ""

    def raise_failure(self) -> None:
        """Raise the first failure so far, if any, for a consumer that is busy with other work."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self._guard.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all threads. Raises StageError, which names a thread that does not end in time."""
        self._is_closing = True
        self._guard.close()
        end = ChannelClosedError("the pipeline is closed")
        for channel in self._channels:
            channel.fail(end)
        self._on_close()
        join_s = _JOIN_AFTER_STALL_S if isinstance(self._failure, StallError) else _JOIN_S
        deadline = time.monotonic() + join_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            message = f"thread {', '.join(stuck)} did not end within {join_s:g} s"
            if self._failure is not None:
                raise StageError(f"{self._failure}; {message}") from self._failure
            raise StageError(message)

    def _fail(self, failure: BaseException) -> None:
        with self._failing:
            if self._failure is not None:
                return
            self._failure = failure
        self._report_failure(failure)
        for channel in self._channels:
            channel.fail(failure)

    def _stalled(self, stacks: str) -> None:
        cause = self._cause_of_stall()
        if cause is not None:
            self._fail(cause)
            return
        recent = [f"{stage} on {device}: step {step}" for stage, device, step in self._recent]
        last = recent[-1] if recent else "nothing has started"
        busy = self._busy()
        summary = f"{', '.join(busy)} did not return" if busy else f"last: {last}"
        stalled = StallError(
            f"nothing moved for {self._timeout_s:g} s ({summary}); raise runtime.stall_timeout_s if a "
            "step takes that long"
        )
        # Fail the channels first: the run must end even if the report cannot be written.
        self._fail(stalled)
        try:
            events = "\n".join(recent)
            self._report_stall(f"{stalled}\n\n{stacks}\nlast pipeline events\n{events}\n")
        except OSError as error:
            stalled.add_note(f"the stacks of all threads could not be written: {error}")

    def _busy(self) -> list[str]:
        """Return the current work of each thread that is not waiting in a channel."""
        frames = sys._current_frames()
        busy = [self._consumer_does] if self._consumer_does else []
        for thread, place in self._threads.items():
            frame = frames.get(thread.ident or 0)
            while frame is not None and frame.f_code.co_qualname.partition(".")[0] != Channel.__name__:
                frame = frame.f_back
            if frame is None and thread.is_alive() and place.has_started:
                busy.append(str(place))
        return busy

    def record_progress(self) -> None:
        """Record progress other than items in channels. This method is thread-safe."""
        self._moves += 1

    def _activity(self) -> int:
        return self._moves + sum(
            s.sent + s.received for s in (channel.statistics() for channel in self._channels)
        )
