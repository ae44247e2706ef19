"""Feature rows that are stored in the parts of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class PartedRows:
    """Feature rows of some or all parts, found by the part of a vertex and its local index in it."""

    parts: Mapping[int, DenseFeatures | SparseFeatures]
    """The rows of each part that is here, by its number: at least one part."""
    homes: NDArray[Any]
    """[V] unsigned, the part of each vertex."""
    places: NDArray[Any]
    """[V] integers, the row of each vertex among those of its part."""

    __repr__ = one_line

    @property
    def width(self) -> int:
        return self._one.width

    @property
    def value_bytes(self) -> int:
        return self._one.value_bytes

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.parts.values())

    @property
    def matrix(self) -> None:
        return None

    @property
    def _one(self) -> DenseFeatures | SparseFeatures:
        return next(iter(self.parts.values()))

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        """Write the rows of some vertices; see `RowSource.rows`.

        Raises
        ------
        DataError
            If a part that has one of them is not here.
        """
        homes = self.homes[ids]
        counts = np.bincount(homes)
        needed = np.flatnonzero(counts)
        for number in needed:
            if int(number) not in self.parts:
                vertex = ids[int(np.argmax(homes == number))]
                raise DataError(f"the row of vertex {vertex} is in part {number}, which is not here")
        if len(needed) == 1:
            self.parts[int(needed[0])].rows(self.places[ids], out, workers)
            return
        order = np.argsort(homes, kind="stable")
        ends = np.cumsum(counts)
        for number in needed:
            where = order[ends[number] - counts[number] : ends[number]]
            found = np.empty((len(where), self.width), np.float32)
            self.parts[int(number)].rows(self.places[ids[where]], found, workers)
            out[where] = found
