"""Names of vertices, numbered in the order in which they come."""

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
"""Memory that a name takes at most, beside three times its own bytes."""
_LEAST = 1 << 12
_PADDING = np.frombuffer(b" \t", np.uint8)


def _as_seen(name: str) -> str:
    """A name without spaces around it and letters that are not seen, accents composed with their letters."""
    plain = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFC", plain).strip()


class VertexNames:
    """Finds the numbers of names, and gives new ones to those that are not known."""

    def __init__(self) -> None:
        self.num = 0
        """How many names there are."""
        self._slots = np.full(2 * _LEAST, -1, np.int64)
        self._ends = np.zeros(_LEAST + 1, np.int64)
        self._kept = np.empty(16 * _LEAST, np.uint8)

    def add(self, names: Any, missing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Numbers of names, which are given where they have none.

        Parameters
        ----------
        names
            An Arrow array of strings [n].
        missing
            [n] which of them are not there: they get -1.
        """
        data, offsets = bytes_of(names)
        self._make_room(len(names), int(offsets[-1] - offsets[0]))
        out = np.empty(len(names), np.int64)
        self.num = int(
            kernels.add_names(data, offsets, missing, self._slots, self._kept, self._ends, self.num, out)
        )
        return out

    def find(self, names: Any, missing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Numbers of names; -1 for those that are not known."""
        data, offsets = bytes_of(names)
        out = np.empty(len(names), np.int64)
        kernels.find_names(data, offsets, missing, self._slots, self._kept, self._ends, out)
        return out

    def name(self, number: int) -> str:
        """The name of a number."""
        return self._kept[self._ends[number] : self._ends[number + 1]].tobytes().decode()

    def alike(self, rows: int = 1 << 16) -> Iterator[tuple[str, str]]:
        """Return the names that look like another one, each with the other one.

        They have spaces around them, letters that are not seen, or accents that are letters of their own.
        """
        import pyarrow as pa

        for start in range(0, self.num, rows):
            ends = self._ends[start : min(start + rows, self.num) + 1]
            filled = np.flatnonzero(ends[1:] > ends[:-1])
            first, last = self._kept[ends[filled]], self._kept[ends[filled + 1] - 1]
            padded = filled[np.isin(first, _PADDING) | np.isin(last, _PADDING)]
            beyond_ascii = ends[0] + np.flatnonzero(self._kept[ends[0] : ends[-1]] >= 0x80)
            special = np.searchsorted(ends, beyond_ascii, side="right") - 1
            for number in np.union1d(padded, special):
                name = self.name(start + int(number))
                seen = _as_seen(name)
                if seen == name:
                    continue
                if self.find(pa.array([seen], pa.string()), np.zeros(1, np.bool_))[0] >= 0:
                    yield name, seen

    def blocks(self, rows: int = 1 << 16) -> Iterator[list[str]]:
        """All names in the order of their numbers, some at a time."""
        for start in range(0, self.num, rows):
            ends = self._ends[start : min(start + rows, self.num) + 1]
            data = self._kept[ends[0] : ends[-1]].tobytes()
            bounds = (ends - ends[0]).tolist()
            yield [data[a:b].decode() for a, b in itertools.pairwise(bounds)]

    def _make_room(self, names: int, num_bytes: int) -> None:
        """For so many names more, of so many bytes together."""
        if self.num + names >= len(self._ends):
            grown = np.zeros(2 * (self.num + names) + 1, np.int64)
            grown[: self.num + 1] = self._ends[: self.num + 1]
            self._ends = grown
        used = int(self._ends[self.num])
        if used + num_bytes > len(self._kept):
            kept = np.empty(2 * (used + num_bytes), np.uint8)
            kept[:used] = self._kept[:used]
            self._kept = kept
        if 2 * (self.num + names) > len(self._slots):
            # The old one is given up first.
            self._slots = np.empty(0, np.int64)
            self._slots = np.full(1 << int(2 * (self.num + names) - 1).bit_length(), -1, np.int64)
            kernels.fill_slots(self._kept, self._ends, self.num, self._slots)
