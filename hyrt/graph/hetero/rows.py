"""Feature rows of a heterogeneous graph: one table per vertex type with features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.hetero.graph_types import GraphTypes
from hyrt.graph.row_source import RowSource
from hyrt.runtime.workers import Workers


@dataclass(frozen=True, slots=True, eq=False)
class HeteroRows:
    """One row source per vertex type. Widths differ, so rows are read per type and not padded."""

    types: GraphTypes
    tables: tuple[RowSource | None, ...]
    """[T] row sources, indexed within each type; None if a type has no features and a model learns
    embeddings."""

    __repr__ = short_repr

    def table(self, vertex_type: str) -> RowSource | None:
        """Return a type's row source; None if it has no features."""
        return self.tables[self.types.type_index(vertex_type)]

    def table_width(self, vertex_type: str) -> int:
        """Return the number of feature columns of a type; 0 if it has no features."""
        table = self.table(vertex_type)
        return 0 if table is None else table.width

    def table_rows(
        self, vertex_type: str, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers
    ) -> None:
        """Write the features of vertices [n] of one type, by their ids in the graph, to `out` [n, F] float32.

        Raises DataError if the type has no features.
        """
        number = self.types.type_index(vertex_type)
        table = self.tables[number]
        if table is None:
            raise DataError(
                f"vertices of type {vertex_type!r} have no features: a model learns rows for them"
            )
        table.rows(ids - ids.dtype.type(self.types.starts[number]), out, workers)

    @property
    def width(self) -> int:
        """Maximum number of columns; 0 if no type has features."""
        return max((table.width for table in self.tables if table is not None), default=0)

    @property
    def value_bytes(self) -> int:
        """Maximum bytes per value over all tables."""
        return max((table.value_bytes for table in self.tables if table is not None), default=4)

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables if table is not None)

    @property
    def matrix(self) -> None:
        return None

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        """Raise DataError with a remedy: there is no single feature matrix [V, F]."""
        raise DataError(
            "a typed graph has a table of features for each type of vertices, and no single matrix of rows: "
            "train a model for typed graphs, or ask for the rows of each type by itself (HeteroRows.rows_of)"
        )
