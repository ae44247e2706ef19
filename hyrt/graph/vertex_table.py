"""The vertices of one type: their feature rows, labels and splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.row_source import RowSource
from hyrt.quantities import counted, one_line

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class VertexTable:
    """What is known of the vertices of one type."""

    features: RowSource
    """The feature rows of the vertices."""
    labels: NDArray[Any]
    """[V] signed integer, the class in 0..C-1, -1 for no label."""
    masks: dict[str, NDArray[np.bool_]]
    """`train`, `val`, `test`: bool [V] or [V, K] with K alternative splits."""
    vertex_ids: NDArray[Any] | None = None
    """[V] integers, the number that each vertex had before the dataset was put in another order; None where
    it never was."""

    __repr__ = one_line

    @cached_property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1 if len(self.labels) else 0

    @cached_property
    def positions(self) -> NDArray[Any] | None:
        """[V] integers, where the vertex of each original number is now; None where the order is that one."""
        if self.vertex_ids is None:
            return None
        positions = np.empty_like(self.vertex_ids)
        positions[self.vertex_ids] = np.arange(len(positions), dtype=positions.dtype)
        return positions

    @property
    def num_splits(self) -> int:
        """How many alternative train/val/test splits the dataset has."""
        mask = self.masks["train"]
        return 1 if mask.ndim == 1 else int(mask.shape[1])

    def split(self, name: str, column: int, source: str) -> NDArray[np.int64]:
        """The vertices of one split, sorted.

        Parameters
        ----------
        name
            `train`, `val` or `test`, or the name of a further mask.
        column
            Which of the K alternative splits.
        source
            The graph's name, for the error.

        Returns
        -------
        [n] int64 vertex ids.

        Raises
        ------
        DataError
            If there is no such split or column.
        """
        if name not in self.masks:
            raise DataError(f"{source}: no split {name!r}: the splits are {', '.join(self.masks)}")
        mask = self.masks[name]
        if column < 0 or column >= self.num_splits:
            raise DataError(
                f"{source}: no split {column}: the dataset has {counted(self.num_splits, 'split')}, numbered "
                "from 0"
            )
        return np.flatnonzero(mask if mask.ndim == 1 else mask[:, column])
