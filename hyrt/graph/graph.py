"""The graph every part of hyrt works on: topology, features, labels, splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

Array = NDArray[Any]

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class DenseFeatures:
    """Feature rows in one matrix, in memory or memory-mapped.

    Parameters
    ----------
    values
        [V, F] float32 or float16, C-contiguous.
    """

    values: Array

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def row_bytes(self) -> int:
        return self.width * self.values.itemsize


@dataclass(frozen=True, slots=True)
class SparseFeatures:
    """Feature rows as CSR, for bags of words whose dense form would not fit.

    Parameters
    ----------
    indptr
        [V+1] int64.
    columns
        [nnz] int32, strictly increasing within a row.
    values
        [nnz] float32.
    width
        F, the number of columns.
    """

    indptr: Array
    columns: Array
    values: Array
    width: int


@dataclass(frozen=True)
class Graph:
    """A graph with features, labels and splits.

    Parameters
    ----------
    name
        Where it came from, for messages and reports.
    indptr
        [V+1] int64, CSR over incoming edges.
    indices
        [E] int32 or int64, the sources of the edges into each vertex, sorted within a row.
    features
        Dense or sparse rows of width F.
    labels
        [V] signed integer, the class in 0..C-1, -1 for no label.
    masks
        `train`, `val`, `test`: bool [V] or [V, K] with K alternative splits.
    """

    name: str
    indptr: NDArray[np.int64]
    indices: Array
    features: DenseFeatures | SparseFeatures
    labels: Array
    masks: dict[str, NDArray[np.bool_]]

    @property
    def num_vertices(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.indptr[-1])

    @property
    def num_features(self) -> int:
        return self.features.width

    @cached_property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1 if len(self.labels) else 0

    @property
    def num_splits(self) -> int:
        """How many alternative train/val/test splits the dataset has."""
        mask = self.masks["train"]
        return 1 if mask.ndim == 1 else int(mask.shape[1])

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """[V] int32, the number of incoming edges of each vertex."""
        return np.diff(self.indptr).astype(np.int32)

    @cached_property
    def gcn_scale(self) -> NDArray[np.float32]:
        """[V] float32, 1 / sqrt(in-degree + 1): each end's factor in GCN's normalisation with self loops."""
        scale: NDArray[np.float32] = 1 / np.sqrt(self.in_degrees.astype(np.float32) + np.float32(1))
        return scale

    def split(self, name: str, column: int = 0) -> NDArray[np.int64]:
        """The vertices of one split, sorted.

        Parameters
        ----------
        name
            `train`, `val` or `test`, or the name of a further mask.
        column
            Which of the K alternative splits.

        Returns
        -------
        [n] int64 vertex ids.

        Raises
        ------
        DataError
            If there is no such split or column.
        """
        if name not in self.masks:
            raise DataError(f"{self.name}: no split {name!r}: it has {', '.join(self.masks)}")
        mask = self.masks[name]
        if column < 0 or column >= self.num_splits:
            raise DataError(
                f"{self.name}: split {column} asked for, it has {self.num_splits} (numbered from 0)"
            )
        return np.flatnonzero(mask if mask.ndim == 1 else mask[:, column])
