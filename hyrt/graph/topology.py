"""The edges of one relation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line


@dataclass(frozen=True)
class Topology:
    """One relation's edges as CSR over incoming edges."""

    indptr: NDArray[np.int64]
    """[V+1] int64, where each destination's edges start."""
    indices: NDArray[Any]
    """[E] int32 or int64, the sources of the edges into each vertex, sorted within a row."""

    __repr__ = one_line

    @property
    def num_vertices(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.indptr[-1])

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.indices.nbytes

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """[V] int32, the number of incoming edges of each vertex."""
        return np.diff(self.indptr).astype(np.int32)

    @cached_property
    def gcn_scale(self) -> NDArray[np.float32]:
        """[V] float32, 1 / sqrt(in-degree + 1): each end's factor in GCN's normalisation with self loops."""
        scale: NDArray[np.float32] = 1 / np.sqrt(self.in_degrees.astype(np.float32) + np.float32(1))
        return scale
