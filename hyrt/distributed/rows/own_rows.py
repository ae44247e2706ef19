"""The feature rows that a rank has, those that it can read where they lie, and who has the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class OwnRows:
    """The rows of one rank's vertices, and where every other vertex has its row."""

    rows: DenseFeatures | SparseFeatures
    """[n, F] the rows of its vertices."""
    homes: NDArray[Any]
    """[V] integers, the rank that has each vertex's row."""
    places: NDArray[Any]
    """[V] integers, the row of each vertex among those of its rank."""
    beside: Mapping[int, DenseFeatures] = field(default_factory=dict)
    """The rows of other ranks that are in this machine's memory, by their numbers. A rank is in it at either
    both of two ranks or at none."""

    __repr__ = one_line
