"""A step over a whole graph as the CPU trainer makes it: gathering along all edges, rows in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GatherKind = Literal["sum", "attention", "max", "loops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReads:
    """Rows that are read along edges, in one direction of one layer."""

    kind: GatherKind
    """How they are combined: sums (mean and GCN's normalisation too), sums weighted by attention, maxima; or
    by loops that are compiled for the kind of model, which compute a message for each edge."""
    back: bool
    """Whether gradients are taken back to the sources."""
    rows: float
    """Rows that are read: one for each edge that counts and, where a vertex reads its own, for each vertex.
    """
    width: int
    """Columns of a row."""
    sources: float
    """The rows that are there to be read."""
    masked_heads: int = 0
    """Heads whose attention is dropped for some of the edges: a mask is drawn for each edge and head."""
    passed: float = 0.0
    """Edges that are looked at and lead to no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraphStep:
    """What a step takes, and what it keeps in memory."""

    arrays: Mapping[str, float]
    """Bytes of each array, by a name for people."""
    reads: tuple[EdgeReads, ...]
    """All gathering, forward and back."""
    calls: float
    """Chunks of rows that are computed, each pass over a chunk counted."""
    macs: float
    """Multiply-accumulates of all passes over rows."""
    values: float
    """Numbers that all passes over rows read and write."""
    sparse_macs: float = 0.0
    """Multiply-accumulates of products of sparse rows."""
    sparse_weights: float = 0.0
    """Weights that products of sparse rows read, each product counted."""
    matrices: Mapping[str, float] = field(default_factory=dict)
    """Of `arrays`, those that live in a file where they exceed the budget of host memory."""
