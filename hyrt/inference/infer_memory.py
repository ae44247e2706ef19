"""Splitting of inference into chunks by memory cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.layer import Footprint

# A destination's id, degree, counts, offsets, factors and position in the result.
ROW_BYTES = 96
# A gathered sparse row (id, number, counts, offset), and each of its entries.
SPARSE_ROW_BYTES, ENTRY_BYTES = 48, 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory cost of a chunk of destinations while a layer is applied, in bytes."""

    row: int
    """Bytes per destination."""
    edge: int
    """Bytes per edge into a destination."""
    entry: int = 0
    """Bytes per stored value of the destinations' sparse features."""


def chunks(
    graph: Graph, marked: NDArray[np.bool_], cost: Cost, budget_bytes: int
) -> Iterator[NDArray[np.int64]]:
    """Split the marked vertices into chunks of at most `budget_bytes`; only single vertices may exceed it.

    Parameters
    ----------
    graph
        Provides degrees and lengths of sparse feature rows.
    marked
        [V] mask of the vertices to split.
    cost
        Cost per vertex.
    budget_bytes
        Maximum cost of a chunk.

    Yields
    ------
    Vertices, ascending over all chunks.
    """
    # Limit the arrays of costs: those of a window take about a sixth of a chunk.
    window = min(max(1, budget_bytes // 256), 1 << 16)
    for first in range(0, len(marked), window):
        vertices = first + np.flatnonzero(marked[first : first + window])
        bytes_each = cost.row + cost.edge * (
            graph.topology.indptr[vertices + 1] - graph.topology.indptr[vertices]
        )
        if cost.entry and isinstance(graph.features, SparseFeatures):
            pointer = graph.features.indptr
            bytes_each += cost.entry * (pointer[vertices + 1] - pointer[vertices])
        total = np.cumsum(bytes_each)
        start = 0
        while start < len(vertices):
            before = total[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(total, before + budget_bytes, side="right")))
            yield vertices[start:stop]
            start = stop


def layer_cost(graph: Graph, footprint: Footprint) -> Cost:
    """Return the cost of a layer over a block that is read in place."""
    # Per edge: its source, and the position of the source.
    return Cost(ROW_BYTES + 4 * footprint.row, graph.topology.indices.itemsize + 8 + 4 * footprint.edge)
