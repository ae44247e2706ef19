"""Mapping of the vertex ids in tables to vertex numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.tables.ids.vertex_names import VertexNames
from hyrt.graph.tables.reading.bad_rows import BadRows
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.values import texts, whole_numbers
from hyrt.quantities import one_line

Numbers = NDArray[np.int64]

_MISSING = "Give every edge two ids; what counts as missing is named by text.nulls of the schema"
NOT_WHOLE = "If ids are texts, or written like 007 or +1, give ids: names in the schema"
"""Remedy for an id that is not written as a whole number."""
SPARSE = 8
"""Ratio of the id range to the number of ids in use, above which ids do not look like consecutive numbers."""
_INT64 = np.iinfo(np.int64)


class VertexIds(Protocol):
    """Mapping from vertex ids to vertex numbers."""

    def numbers(self, piece: TablePiece, column: str, unknown: str, bad: BadRows) -> Numbers:
        """Return the numbers [n] of the ids in a column; -1 for wrong ids, and for unknown ids that are to be
        dropped.
        """

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices that are known so far."""

    def names_in_order(self) -> Iterator[object] | None:
        """Return the ids of all vertices in the order of their numbers; None if the ids are these numbers."""


@dataclass(slots=True)
class Positions:
    """Integer ids, counted from the first.

    If the number of vertices is not known, only ids that occur in edges are vertices; `close_gaps` numbers
    them after all edges were read.
    """

    first: int
    count: int | None
    """Number of vertices; None while it depends on the edges."""
    decimal: str
    limit: int
    """Upper bound of the number of vertices."""
    largest: int = -1
    least: int = _INT64.max
    """Like `largest`: extreme values of the ids so far, relative to the first id."""
    named: NDArray[np.int64] | None = None
    """The ids in use, sorted, if ids between them are unused."""
    from_table: bool = True
    """Whether there is a table of vertices; for messages."""

    __repr__ = one_line

    @property
    def num_vertices(self) -> int:
        return self.largest + 1 if self.count is None else self.count

    def names_in_order(self) -> Iterator[object] | None:
        if self.named is not None:
            return map(int, self.named)
        return iter(range(self.first, self.first + self.num_vertices)) if self.first else None

    def numbers(self, piece: TablePiece, column: str, unknown: str, bad: BadRows) -> Numbers:
        values, missing, wrong = whole_numbers(piece.columns[column], self.decimal)
        if missing.any() or wrong.any():
            bad.add(piece, column, missing, "is not an id", _MISSING)
            bad.add(piece, column, wrong, "is not a whole number", NOT_WHOLE)
        last = self.first + (self.limit if self.count is None else self.count) - 1
        good = ~(missing | wrong)
        outside = good & ((values < self.first) | (values > last))
        if outside.any():
            self._report_outside(piece, column, values, outside, unknown, bad, last)
        numbers = values - self.first
        numbers[~good | outside] = -1
        if self.count is None and len(numbers):
            self.largest = max(self.largest, int(numbers.max()))
            self.least = min(self.least, int(numbers[numbers >= 0].min(initial=self.least)))
        return numbers

    def close_gaps(self, pieces: Iterator[Numbers]) -> NDArray[np.int64]:
        """Keep the ids that are in use, and number them in order.

        Parameters
        ----------
        pieces
            All results of `numbers`.

        Returns
        -------
        [largest - least + 1] the new number of each old number, starting at the smallest one.
        """
        is_used = np.zeros(self.largest - self.least + 1, np.bool_)
        for numbers in pieces:
            is_used[numbers[numbers >= 0] - self.least] = True
        self.named = np.flatnonzero(is_used) + (self.least + self.first)
        self.count = len(self.named)
        if self.least == 0 and self.count == len(is_used):
            self.named = None
        return np.cumsum(is_used) - 1

    def _report_outside(
        self, piece: TablePiece, column: str, values: Any, outside: Any, unknown: str, bad: BadRows, last: int
    ) -> None:
        if self.count is not None:
            if unknown == "refuse":
                bad.add(
                    piece,
                    column,
                    outside,
                    f"is not a vertex: {'the table of vertices has' if self.from_table else 'ids go from'} "
                    f"{self.first:,} to {last:,}",
                    ("Add these vertices to their table" if self.from_table else "Give a larger num_vertices")
                    + ", or give edges.unknown: drop in the schema to leave their edges out"
                    + ("; if ids count from 1, give first_id: 1" if self.first == 0 else ""),
                )
            return
        bad.add(
            piece,
            column,
            outside & (values < self.first),
            f"is below the first id, {self.first:,}",
            "Give first_id in the schema, or ids: names where ids do not count up",
        )
        bad.add(
            piece,
            column,
            outside & (values > last),
            "is too large to count vertices",
            "Give ids: names in the schema: then ids are numbered",
        )


@dataclass(slots=True)
class Named:
    """String ids."""

    names: VertexNames
    grows: bool
    """Whether an unknown id is a new vertex, i.e. there is no table of vertices."""

    @property
    def num_vertices(self) -> int:
        return self.names.num

    def names_in_order(self) -> Iterator[object] | None:
        return (name for block in self.names.blocks() for name in block)

    def numbers(self, piece: TablePiece, column: str, unknown: str, bad: BadRows) -> Numbers:
        ids, missing = texts(piece.columns[column])
        if missing.any():
            bad.add(piece, column, missing, "is not an id", _MISSING)
        if self.grows:
            return self.names.add(ids, missing)
        numbers = self.names.find(ids, missing)
        if unknown == "refuse":
            bad.add(
                piece,
                column,
                (numbers < 0) & ~missing,
                "is not a vertex of the table of vertices",
                "Add these vertices to their table, or give edges.unknown: drop in the schema to leave their "
                "edges out",
            )
        return numbers
