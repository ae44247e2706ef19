"""How the traces of processes that train together come into one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TracesOfRanks(Protocol):
    """Brings together what the ranks have traced; all of them call each method at once, but for `leave`."""

    @property
    def rank(self) -> int:
        """The number of this process; rank 0 writes the file."""
        ...

    def clock_offset(self) -> tuple[int, int]:
        """What rank 0's clock shows more than this one's, and by how much that may be off: nanoseconds."""
        ...

    def tell(self, record: Any) -> Sequence[Any]:
        """Plain values of each rank, in their order."""
        ...

    def at_first(self, data: bytes) -> Sequence[bytes]:
        """The data of each rank, in their order; none but at rank 0."""
        ...

    def leave(self, data: bytes) -> Mapping[int, bytes]:
        """Leave the data of a rank of a run that fails; this one waits for no other for long.

        Returns what the ranks could leave, by their numbers; none but at the first rank that is left.
        """
        ...
