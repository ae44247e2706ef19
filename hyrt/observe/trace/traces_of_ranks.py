"""Collection of the traces of several ranks in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TracesOfRanks(Protocol):
    """Collective operations on the traces of all ranks; every rank calls each method, except for `leave`."""

    @property
    def rank(self) -> int:
        """Rank of this process; rank 0 writes the file."""
        ...

    def clock_offset(self) -> tuple[int, int]:
        """Return the offset of rank 0's clock to this process's clock and its uncertainty, in nanoseconds."""
        ...

    def tell(self, record: Any) -> Sequence[Any]:
        """All-gather plain values: return one per rank, in rank order."""
        ...

    def at_first(self, data: bytes) -> Sequence[bytes]:
        """Gather data on rank 0: return one per rank, in rank order; empty on other ranks."""
        ...

    def leave(self, data: bytes) -> Mapping[int, bytes]:
        """Deliver the data of one rank of a failed run, without waiting long for other ranks.

        Returns the delivered data by rank on the first surviving rank; empty on other ranks.
        """
        ...
