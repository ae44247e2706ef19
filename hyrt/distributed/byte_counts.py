"""Byte counters of a rank's network traffic, by purpose."""

from __future__ import annotations

import threading
from collections import Counter


class ByteCounts:
    """Thread-safe counters of the bytes that one rank sends and receives."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, purpose: str, sent: int, received: int) -> None:
        """Count bytes sent to other ranks and received from other ranks."""
        with self._lock:
            self._sent[purpose] += sent
            self._received[purpose] += received

    def sent(self) -> dict[str, int]:
        """Return the bytes sent so far, by purpose."""
        with self._lock:
            return dict(self._sent)

    def received(self) -> dict[str, int]:
        """Return the bytes received so far, by purpose."""
        with self._lock:
            return dict(self._received)
