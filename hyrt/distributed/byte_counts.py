"""Bytes that a rank has sent to others, by what they are for."""

from __future__ import annotations

import threading
from collections import Counter


class ByteCounts:
    """Counts of what one rank sends and receives; any thread may add to them."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, purpose: str, sent: int, received: int) -> None:
        """Count bytes that have left for other ranks, and those that came from them."""
        with self._lock:
            self._sent[purpose] += sent
            self._received[purpose] += received

    def sent(self) -> dict[str, int]:
        """Bytes sent so far, by purpose."""
        with self._lock:
            return dict(self._sent)

    def received(self) -> dict[str, int]:
        """Bytes received so far, by purpose."""
        with self._lock:
            return dict(self._received)
