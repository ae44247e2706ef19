"""From the ids that tables name vertices by to numbers of vertices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.tables.reading.bad_rows import BadRows
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.values import texts, whole_numbers
from hyrt.graph.tables.vertex_names import VertexNames

Numbers = NDArray[np.int64]

_MISSING = "Give every edge two ids; what counts as missing is named by text.nulls of the schema"
_NAMES = "If ids are texts, give ids: names in the schema"


class VertexIds(Protocol):
    """Finds the numbers of vertices by their ids."""

    kind: Literal["whole", "text"]
    """What is in a column of ids."""

    def numbers(self, piece: TablePiece, column: str, unknown: str, bad: BadRows) -> Numbers:
        """Numbers [n] of the ids in a column; -1 for those that are wrong, or unknown and to be dropped."""

    @property
    def num_vertices(self) -> int:
        """How many vertices there are, as far as is known."""

    def names_in_order(self) -> Iterator[object] | None:
        """The ids of all vertices in the order of their numbers; None where they are these numbers."""


@dataclass(slots=True)
class Positions:
    """Ids that are whole numbers, counted from the first."""

    first: int
    count: int | None
    """The number of vertices of the table; None where there is no table."""
    decimal: str
    limit: int
    """The most vertices that there can be."""
    largest: int = -1
    kind: Literal["whole", "text"] = "whole"

    @property
    def num_vertices(self) -> int:
        return self.largest + 1 if self.count is None else self.count

    def names_in_order(self) -> Iterator[object] | None:
        return iter(range(self.first, self.first + self.num_vertices)) if self.first else None

    def numbers(self, piece: TablePiece, column: str, unknown: str, bad: BadRows) -> Numbers:
        values, missing, wrong = whole_numbers(piece.columns[column], self.decimal)
        if missing.any() or wrong.any():
            bad.add(piece, column, missing, "is not an id", _MISSING)
            bad.add(piece, column, wrong, "is not a whole number", _NAMES)
        last = self.first + (self.limit if self.count is None else self.count) - 1
        good = ~(missing | wrong)
        outside = good & ((values < self.first) | (values > last))
        if outside.any():
            self._say(piece, column, values, outside, unknown, bad, last)
        numbers = values - self.first
        numbers[~good | outside] = -1
        if self.count is None and len(numbers):
            self.largest = max(self.largest, int(numbers.max()))
        return numbers

    def _say(
        self, piece: TablePiece, column: str, values: Any, outside: Any, unknown: str, bad: BadRows, last: int
    ) -> None:
        if self.count is not None:
            if unknown == "refuse":
                bad.add(
                    piece,
                    column,
                    outside,
                    f"is not a vertex: the table of vertices has {self.first:,} to {last:,}",
                    "Add these vertices to their table, or give edges.unknown: drop in the schema to leave "
                    "their edges out"
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
    """Ids that are texts."""

    names: VertexNames
    grows: bool
    """Whether an id that is not known is a new vertex: where there is no table."""
    kind: Literal["whole", "text"] = "text"

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
