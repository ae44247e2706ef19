"""What applying one layer to a vertex keeps in memory: how inference cuts its work to a budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.layers import ConvolutionLayer, GatLayer, GinLayer
from hyrt.nn.model import GNN

# A destination's id, degree, counts, offsets, factors, and its place in the result.
_ROW_BYTES = 96
# A gathered sparse row: its id, number, counts and offset; and each of its entries.
_SPARSE_ROW_BYTES, _ENTRY_BYTES = 48, 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that a chunk of destinations keeps while a layer is applied to it.

    Parameters
    ----------
    row, edge
        Per destination, and per edge into it.
    entry
        Per stored value of a destination's own sparse features.
    """

    row: int
    edge: int
    entry: int = 0


def chunks(
    graph: Graph, marked: NDArray[np.bool_], cost: Cost, budget_bytes: int
) -> Iterator[NDArray[np.int64]]:
    """Cut the marked vertices into parts that cost at most the budget; only a single vertex may cost more.

    Parameters
    ----------
    graph
        For degrees and lengths of feature rows.
    marked
        [V].
    cost
        Of a vertex.
    budget_bytes
        For each part.

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


def walk_cost(graph: Graph) -> Cost:
    """Of listing a vertex's neighbours with numpy: three arrays of positions, and the neighbours."""
    return Cost(_ROW_BYTES, 24 + graph.topology.indices.itemsize)


def product_cost(width: int) -> Cost:
    """Of multiplying a vertex's sparse row into `width` columns."""
    return Cost(_SPARSE_ROW_BYTES + 4 * width, 0, _ENTRY_BYTES)


def in_place_cost(model: GNN, graph: Graph, i: int) -> Cost:
    """Of layer i where it reads a whole matrix of dense rows in place."""
    layer = model.layers[i]
    edge = _edge_bytes(graph)
    if isinstance(layer, GatLayer):
        heads, width, in_features = layer.weight.shape
        # The combined rows and own coefficients; products, stacked, averaged or turned, with a bias; of each edge
        # its coefficient and derivative.
        return Cost(
            _ROW_BYTES + 4 * (heads * (in_features + 2 + 4 * width) + _finish_floats(model, i)),
            edge + 8 * heads,
        )
    return Cost(_ROW_BYTES + 4 * (_convolution_floats(layer) + _finish_floats(model, i)), edge)


def multiplied_cost(model: GNN, graph: Graph) -> Cost:
    """Of the first layer where it aggregates products of sparse rows in place."""
    layer = model.layers[0]
    row = _ROW_BYTES + _SPARSE_ROW_BYTES
    edge = _edge_bytes(graph)
    if isinstance(layer, GatLayer):
        heads, width, _ = layer.weight.shape
        floats, edge = heads * (2 + 4 * width), edge + 8 * heads
    else:
        # Own and aggregated product, their sum, the sum with a bias, and for GIN the second product.
        floats = 5 * _out_features(layer)
    return Cost(row + 4 * (floats + _finish_floats(model, 0)), edge, _ENTRY_BYTES)


def gathered_cost(model: GNN, graph: Graph) -> Cost:
    """Of the first layer where it gathers sparse rows and makes them dense, as a maximum needs."""
    # Every edge may have a source of its own, and a row may be full.
    source = _SPARSE_ROW_BYTES + (4 + _ENTRY_BYTES) * graph.num_features
    floats = _convolution_floats(model.layers[0]) + _finish_floats(model, 0)
    return Cost(_ROW_BYTES + source + 4 * floats, _edge_bytes(graph) + source)


def _edge_bytes(graph: Graph) -> int:
    """Its source, and where that was found."""
    return graph.topology.indices.itemsize + 8


def _convolution_floats(layer: object) -> int:
    assert isinstance(layer, ConvolutionLayer | GinLayer)
    inner = layer.inner if isinstance(layer, GinLayer) else layer
    return inner.weight.shape[1] + (2 if isinstance(layer, GinLayer) else 1) * inner.weight.shape[0]


def _out_features(layer: object) -> int:
    assert isinstance(layer, ConvolutionLayer | GinLayer)
    return len(layer.bias)


def _finish_floats(model: GNN, i: int) -> int:
    """Of residual, norm, activation, and the rows in the caller's order."""
    a = model.architecture
    out = a.num_classes if i == a.layers - 1 else a.hidden
    # Own rows are read as halves and as floats.
    own = 2 * (a.hidden if i else a.in_features) if a.residual and i < a.layers - 1 else 0
    return 4 * out + own
