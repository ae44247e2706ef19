"""Hash table of vertex names, numbered in order of first occurrence."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.tables.ids import name_kernels as kernels
from hyrt.graph.tables.reading.values import bytes_of

NAME_BYTES = 56
"""Upper bound of the memory per name, in addition to three times its length in bytes."""
_MIN_NAMES = 1 << 12
_PADDING = np.frombuffer(b" \t", np.uint8)


def _as_seen(name: str) -> str:
    """Return the visible form of a name: composed accents, no outer spaces, no invisible characters."""
    plain = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFC", plain).strip()


class VertexNames:
    """Mapping from names to numbers, in which new names get the next number."""

    def __init__(self) -> None:
        self.num = 0
        """Number of names."""
        self._slots = np.full(2 * _MIN_NAMES, -1, np.int64)
        self._ends = np.zeros(_MIN_NAMES + 1, np.int64)
        self._bytes = np.empty(16 * _MIN_NAMES, np.uint8)

    def add(self, names: Any, missing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the numbers of names; new names are added.

        Parameters
        ----------
        names
            An Arrow array of strings [n].
        missing
            [n] which names are missing; their number is -1.
        """
        data, offsets = bytes_of(names)
        self._reserve(len(names), int(offsets[-1] - offsets[0]))
        out = np.empty(len(names), np.int64)
        self.num = int(
            kernels.add_names(data, offsets, missing, self._slots, self._bytes, self._ends, self.num, out)
        )
        return out

    def find(self, names: Any, missing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the numbers of names; -1 for unknown names."""
        data, offsets = bytes_of(names)
        out = np.empty(len(names), np.int64)
        kernels.find_names(data, offsets, missing, self._slots, self._bytes, self._ends, out)
        return out

    def name(self, number: int) -> str:
        """Return the name with a number."""
        return self._bytes[self._ends[number] : self._ends[number + 1]].tobytes().decode()

    def alike(self, rows: int = 1 << 16) -> Iterator[tuple[str, str]]:
        """Yield the names that look like another name, together with that name.

        They differ by surrounding spaces, invisible characters, or decomposed accents.
        """
        import pyarrow as pa

        for start in range(0, self.num, rows):
            ends = self._ends[start : min(start + rows, self.num) + 1]
            filled = np.flatnonzero(ends[1:] > ends[:-1])
            first, last = self._bytes[ends[filled]], self._bytes[ends[filled + 1] - 1]
            padded = filled[np.isin(first, _PADDING) | np.isin(last, _PADDING)]
            beyond_ascii = ends[0] + np.flatnonzero(self._bytes[ends[0] : ends[-1]] >= 0x80)
            special = np.searchsorted(ends, beyond_ascii, side="right") - 1
            for number in np.union1d(padded, special):
                name = self.name(start + int(number))
                seen = _as_seen(name)
                if seen == name:
                    continue
                if self.find(pa.array([seen], pa.string()), np.zeros(1, np.bool_))[0] >= 0:
                    yield name, seen

    def blocks(self, rows: int = 1 << 16) -> Iterator[list[str]]:
        """Yield all names in the order of their numbers, in blocks."""
        for start in range(0, self.num, rows):
            ends = self._ends[start : min(start + rows, self.num) + 1]
            data = self._bytes[ends[0] : ends[-1]].tobytes()
            bounds = (ends - ends[0]).tolist()
            yield [data[a:b].decode() for a, b in itertools.pairwise(bounds)]

    def _reserve(self, names: int, num_bytes: int) -> None:
        """Grow the arrays for additional names with a total length in bytes."""
        if self.num + names >= len(self._ends):
            grown = np.zeros(2 * (self.num + names) + 1, np.int64)
            grown[: self.num + 1] = self._ends[: self.num + 1]
            self._ends = grown
        used = int(self._ends[self.num])
        if used + num_bytes > len(self._bytes):
            grown_bytes = np.empty(2 * (used + num_bytes), np.uint8)
            grown_bytes[:used] = self._bytes[:used]
            self._bytes = grown_bytes
        if 2 * (self.num + names) > len(self._slots):
            # Free the old array first, to lower the peak memory.
            self._slots = np.empty(0, np.int64)
            self._slots = np.full(1 << int(2 * (self.num + names) - 1).bit_length(), -1, np.int64)
            kernels.fill_slots(self._bytes, self._ends, self.num, self._slots)
