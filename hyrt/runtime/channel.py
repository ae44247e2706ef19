"""Bounded channel between two pipeline stages, and snapshots of its counters."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosedError(Exception):
    """Exception of `get` at the end of the stream, and of `put` if the receiver has closed its end."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Counters since the channel was created.

    `send_blocked_s` and `receive_blocked_s` are the total waiting times of the two ends, and `sends_blocked`
    and `receives_blocked` count the waits. `peak` is the highest occupancy. `item_s` is the total residence
    time of all items; divided by the elapsed time, it is the mean occupancy.
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

    Closing the sending end ends the stream once it is drained; closing the receiving end makes the next `put`
    raise; `fail` makes both ends raise at once. `on_change` is called with the number of queued items on
    every change.
    """

    def __init__(self, name: str, capacity: int, on_change: Callable[[int], None] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"channel {name}: a capacity of {capacity} cannot hold anything")
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
        # Each interval subtracts its start time from these sums when it begins, and adds its end time when it
        # ends. Only the start time of an interval in progress is included.
        self._send_blocked_s = self._receive_blocked_s = self._item_s = 0.0
        self._senders_waiting = self._receivers_waiting = 0

    def put(self, item: T) -> None:
        """Send an item; block while the channel is full.

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
        """Receive the next item; block while the channel is empty.

        Raises ChannelClosedError if the sender has closed its end and the channel is drained.
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
        """End the stream. Queued items can still be received."""
        with self._changed:
            self._sender_closed = True
            self._changed.notify_all()

    def close_receiver(self) -> None:
        """Stop receiving: drop all queued items and make the next `put` raise."""
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
    """Snapshot of channel counters, summed since the channels were created."""

    time_s: float
    """Time of the snapshot, in seconds of `time.perf_counter`."""
    blocked_s: Mapping[str, float]
    """Blocked seconds of each stage, keyed `<stage>.input` and `<stage>.output`; averaged over a stage's
    threads.
    """
    item_s: Mapping[str, float]
    """Total residence time of items in each channel, keyed by channel name."""
    capacity: Mapping[str, int]

    def mean_items_since(self, before: QueueSnapshot) -> dict[str, float]:
        """Return the mean number of items in each channel since the snapshot `before`."""
        elapsed_s = self.time_s - before.time_s
        if elapsed_s <= 0:
            return {}
        return {name: (total - before.item_s[name]) / elapsed_s for name, total in self.item_s.items()}
