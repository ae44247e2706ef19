"""What a model has to know of a typed graph. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TypedShape:
    """The types of vertices and the relations of a graph, by their numbers."""

    types: tuple[str, ...]
    """The names of the types of vertices."""
    counts: tuple[int, ...]
    """The vertices of each type; they are numbered through all types."""
    widths: tuple[int | None, ...]
    """The columns of each type's feature rows; None where it has none, and rows are learned."""
    relations: tuple[tuple[int, str, int], ...]
    """Source type, name and destination type of each relation."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """[T + 1] int64, the first vertex of each type."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @property
    def learned(self) -> list[int]:
        """The types whose rows are learned."""
        return [number for number, width in enumerate(self.widths) if width is None]

    @property
    def num_relations(self) -> int:
        return len(self.relations)
