"""Local feature rows of a rank, rows of other ranks on the same host, and the owners of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class OwnRows:
    """Feature rows of one rank's vertices, with the location of every other vertex's row."""

    rows: DenseFeatures | SparseFeatures
    """[n, F] rows of this rank's vertices."""
    homes: NDArray[Any]
    """[V] integers, owner rank of each vertex."""
    places: NDArray[Any]
    """[V] integers, row index of each vertex at its owner rank."""
    beside: Mapping[int, DenseFeatures] = field(default_factory=dict)
    """Rows of other ranks on this host, by rank. The relation is symmetric: either both of two ranks list
    each other, or neither does."""

    __repr__ = one_line
