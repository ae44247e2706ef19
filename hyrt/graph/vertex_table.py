"""Feature rows, labels and splits of the vertices."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_whole, show
from hyrt.errors import DataError
from hyrt.graph.labels.label_kind import LabelKind, label_kind, labels_in_words, num_outputs, training_labels
from hyrt.graph.row_source import RowSource
from hyrt.quantities import counted, one_line

SPLITS = ("train", "val", "test")
_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class VertexTable:
    """Features, labels and splits of all vertices."""

    features: RowSource
    """Feature rows of the vertices."""
    labels: NDArray[Any]
    """Classes, flags or numbers; see `hyrt.graph.labels.label_kind.LabelKind`."""
    masks: dict[str, NDArray[np.bool_]]
    """`train`, `val`, `test`: bool [V] or [V, K] with K alternative splits."""
    vertex_ids: NDArray[Any] | None = None
    """[V] integers, original index of each vertex before the dataset was reordered; None if it was not."""
    outputs: int | None = None
    """Number of outputs per vertex, if a run has fixed it; None to infer it from the labels."""

    __repr__ = one_line

    @property
    def label_kind(self) -> LabelKind:
        """Kind of the labels."""
        return label_kind(self.labels)

    @cached_property
    def num_outputs(self) -> int:
        """Number of model outputs per vertex."""
        return num_outputs(self.labels) if self.outputs is None else self.outputs

    @property
    def labels_in_words(self) -> str:
        """Description of the labels: `7 classes`, `112 labels of 0 and 1`, `1 number`."""
        return labels_in_words(self.label_kind, self.num_outputs)

    @property
    def num_classes(self) -> int:
        """Number of classes or of binary labels; 0 if labels are numbers."""
        return 0 if self.label_kind == "numbers" else self.num_outputs

    def labels_of(self, vertices: NDArray[Any]) -> NDArray[Any]:
        """Return labels of vertices in mini-batch form; see `training_labels`."""
        return training_labels(self.labels[vertices])

    @cached_property
    def positions(self) -> NDArray[Any] | None:
        """[V] integers, current index of each original vertex; None if the vertices were not reordered."""
        if self.vertex_ids is None:
            return None
        positions = np.empty_like(self.vertex_ids)
        positions[self.vertex_ids] = np.arange(len(positions), dtype=positions.dtype)
        return positions

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the labels and the training mask, which identifies a dataset.

        The checksum does not depend on the storage (file, folder or partition) or on integer dtypes. Features
        are not included, because a rank has only a part of them.
        """
        found = 0
        for array in (self.labels, self.masks["train"]):
            wide = np.int64 if array.dtype.kind in "iu" else array.dtype
            for start in range(0, len(array), _PIECE):
                found = zlib.crc32(np.ascontiguousarray(array[start : start + _PIECE], wide).tobytes(), found)
        return found

    @property
    def num_splits(self) -> int:
        """Number of alternative train/val/test splits of the dataset."""
        mask = self.masks["train"]
        return 1 if mask.ndim == 1 else int(mask.shape[1])

    def split(self, name: str, column: int, source: str) -> NDArray[np.int64]:
        """Return the vertices of one split, sorted.

        Parameters
        ----------
        name
            `train`, `val` or `test`, or the name of a further mask.
        column
            Index of one of the K alternative splits.
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
        check_whole("the number of a split", column, -(2**63))
        if not isinstance(name, str) or name not in self.masks:
            raise DataError(f"{source}: no split {show(name)}: the splits are {', '.join(self.masks)}")
        mask = self.masks[name]
        if column < 0 or column >= self.num_splits:
            raise DataError(
                f"{source}: no split {column}: the dataset has {counted(self.num_splits, 'split')}: give its "
                "number, from 0 on"
            )
        return np.flatnonzero(mask if mask.ndim == 1 else mask[:, column])
