"""Vertex types and relations of a heterogeneous graph, as a model needs them. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GraphMetadata:
    """The vertex types and relations of a graph, by index."""

    types: tuple[str, ...]
    """The names of the vertex types."""
    counts: tuple[int, ...]
    """The number of vertices per type; vertices are numbered through all types."""
    widths: tuple[int | None, ...]
    """The number of feature columns per type; None for a type without features, which has embeddings."""
    relations: tuple[tuple[int, str, int], ...]
    """Source type, name and destination type of each relation."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """[T + 1] int64, the first vertex of each type."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @property
    def learned_types(self) -> list[int]:
        """The types with embeddings."""
        return [number for number, width in enumerate(self.widths) if width is None]

    @property
    def num_relations(self) -> int:
        return len(self.relations)
