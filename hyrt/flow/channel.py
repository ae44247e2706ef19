"""The bounded channel between two stages."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosed(Exception):
    """Nothing more comes out (for the receiver), or nobody listens (for the sender)."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Counts since the channel was made.

    `send_blocked_s` and `receive_blocked_s` are the time its ends have waited so far, `sends_blocked` and
    `receives_blocked` the occasions; `peak` is the highest occupancy, and `item_s` the time that its items
    have been in it, added up: divided by the time that passed, the mean occupancy.
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
    """A bounded first-in first-out queue with two ends.

    Closing the sending end ends the stream once it is drained; closing the receiving end makes the next `put`
    raise; failing it raises the failure at both ends at once. `watch` hears how many items are in it,
    whenever that changes.
    """

    def __init__(self, name: str, capacity: int, watch: Callable[[int], None] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"channel {name}: a capacity of {capacity} cannot hold anything")
        self.name = name
        self._capacity = capacity
        self._watch = watch
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._sender_closed = False
        self._receiver_closed = False
        self._failure: BaseException | None = None
        self._peak = self._sent = self._received = 0
        self._sends_blocked = self._receives_blocked = 0
        # The sums of when waits and items' stays ended, less those of when they began; what goes on has only
        # begun.
        self._send_blocked_s = self._receive_blocked_s = self._item_s = 0.0
        self._senders_waiting = self._receivers_waiting = 0

    def put(self, item: T) -> None:
        """Send an item, waiting for room.

        Raises
        ------
        ChannelClosed
            If the receiver has closed its end.
        """
        with self._changed:
            if self._waits_for_room():
                self._sends_blocked += 1
                self._senders_waiting += 1
                self._send_blocked_s -= time.perf_counter()
                while self._waits_for_room():
                    self._changed.wait()
                self._send_blocked_s += time.perf_counter()
                self._senders_waiting -= 1
            self._raise_failure()
            if self._receiver_closed:
                raise ChannelClosed(f"channel {self.name}: the receiver has closed")
            if self._sender_closed:
                raise ChannelClosed(f"channel {self.name}: put after close")
            self._item_s -= time.perf_counter()
            self._items.append(item)
            self._sent += 1
            self._peak = max(self._peak, len(self._items))
            if self._watch is not None:
                self._watch(len(self._items))
            self._changed.notify_all()

    def get(self) -> T:
        """Receive the next item, waiting for one.

        Raises
        ------
        ChannelClosed
            If the sender has closed its end and all was received.
        """
        with self._changed:
            if self._waits_for_item():
                self._receives_blocked += 1
                self._receivers_waiting += 1
                self._receive_blocked_s -= time.perf_counter()
                while self._waits_for_item():
                    self._changed.wait()
                self._receive_blocked_s += time.perf_counter()
                self._receivers_waiting -= 1
            self._raise_failure()
            if not self._items:
                raise ChannelClosed(f"channel {self.name}: the stream has ended")
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
            except ChannelClosed:
                return
            yield item

    def close_sender(self) -> None:
        """End the stream: what was put can still be received."""
        with self._changed:
            self._sender_closed = True
            self._changed.notify_all()

    def close_receiver(self) -> None:
        """Stop listening: what was put is dropped, and the sender is told."""
        with self._changed:
            self._receiver_closed = True
            self._item_s += time.perf_counter() * len(self._items)
            self._items.clear()
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Raise `failure` at both ends from now on; the first failure stays."""
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

    def _waits_for_room(self) -> bool:
        return (
            len(self._items) >= self._capacity
            and self._failure is None
            and not self._receiver_closed
            and not self._sender_closed
        )

    def _waits_for_item(self) -> bool:
        return (
            not self._items
            and self._failure is None
            and not self._sender_closed
            and not self._receiver_closed
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
