"""CPU work of a full-graph step: gathers along all edges, and row-wise passes in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GatherKind = Literal["sum", "attention", "max", "loops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReads:
    """Rows that one direction of one layer reads along edges."""

    kind: GatherKind
    """Reduction: sum (including mean and GCN normalization), attention-weighted sum, maximum, or compiled
    loops that compute one message per edge."""
    back: bool
    """Whether gradients are propagated back to the sources."""
    rows: float
    """Rows read: one per contributing edge and, if vertices read their own rows, one per vertex."""
    width: int
    """Columns of a row."""
    sources: float
    """Rows available to be read."""
    masked_heads: int = 0
    """Attention heads with dropout, for which a mask is generated per edge and head."""
    passed: float = 0.0
    """Edges that are inspected but lead to no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraphStep:
    """Time and memory requirements of a step."""

    arrays: Mapping[str, float]
    """Bytes per array, by display name."""
    reads: tuple[EdgeReads, ...]
    """All gathers, forward and backward."""
    calls: float
    """Chunks of rows that are computed, counted once per pass."""
    macs: float
    """Multiply-accumulates of all row-wise passes."""
    values: float
    """Values that all row-wise passes read and write."""
    sparse_macs: float = 0.0
    """Multiply-accumulates of products of sparse rows."""
    sparse_weights: float = 0.0
    """Weights that products of sparse rows read, counted once per product."""
    matrices: Mapping[str, float] = field(default_factory=dict)
    """The subset of `arrays` that is stored in a file if it exceeds the host memory budget."""
