"""How inference cuts its work to a memory budget, from what applying a layer to a vertex keeps in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.layer import Footprint

# A destination's id, degree, counts, offsets, factors, and its place in the result.
ROW_BYTES = 96
# A gathered sparse row: its id, number, counts and offset; and each of its entries.
SPARSE_ROW_BYTES, ENTRY_BYTES = 48, 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that a chunk of destinations keeps while a layer is applied to it."""

    row: int
    """Bytes for each destination."""
    edge: int
    """Bytes for each edge into it."""
    entry: int = 0
    """Bytes for each stored value of a destination's own sparse features."""


def chunks(
    graph: Graph, marked: NDArray[np.bool_], cost: Cost, budget_bytes: int
) -> Iterator[NDArray[np.int64]]:
    """Cut the marked vertices into parts that cost at most the budget; only a single vertex may cost more.

    Parameters
    ----------
    graph
        Tells degrees and lengths of feature rows.
    marked
        [V], the vertices to cut.
    cost
        What a vertex costs.
    budget_bytes
        Bound on what a part costs.

    Yields
    ------
    Vertices, ascending over all parts.
    """
    # The sums of costs must not outweigh the chunks: a window's take a sixth of one's bytes.
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
    """The cost of a layer over a block that is read in place."""
    # Of an edge its source, and where that was found.
    return Cost(ROW_BYTES + 4 * footprint.row, graph.topology.indices.itemsize + 8 + 4 * footprint.edge)
