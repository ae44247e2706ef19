"""Vertex types and relations of a heterogeneous graph, as models need them. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GraphMetadata:
    """Vertex types and relations of a graph, by index."""

    types: tuple[str, ...]
    """Names of the vertex types."""
    counts: tuple[int, ...]
    """Number of vertices per type; vertex ids run through all types."""
    widths: tuple[int | None, ...]
    """Number of feature columns per type; None for a type without features, which has embeddings."""
    relations: tuple[tuple[int, str, int], ...]
    """Source type, name and destination type of each relation."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First vertex of each type, [T + 1] int64."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @property
    def learned_types(self) -> list[int]:
        """Types with embeddings."""
        return [number for number, width in enumerate(self.widths) if width is None]

    @property
    def num_relations(self) -> int:
        return len(self.relations)
