"""Conversion of edge lists, as other libraries store them, to CSR rows of incoming edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.check import reject
from hyrt.graph.csr import Store, build_csr

Array = NDArray[Any]


def rows_of_pairs(sources: Array, destinations: Array, num_vertices: int, name: str) -> tuple[Array, Array]:
    """Build the CSR matrix of directed edges by destination, without duplicates.

    Parameters
    ----------
    sources, destinations
        [E] integers, the endpoints of each edge.
    num_vertices
        Number of vertices.
    name
        Name of the dataset, for messages.

    Returns
    -------
    `indptr`, [V+1] int64, and `indices`, int32 or int64, sorted within each row.

    Raises
    ------
    DataError
        If an endpoint is not a vertex.
    """
    indices = Store(np.dtype(np.int32 if num_vertices < 2**31 else np.int64))
    pairs = (np.ascontiguousarray(sources), np.ascontiguousarray(destinations))
    indptr = build_csr(
        lambda: iter([pairs]),
        num_vertices,
        symmetric=False,
        self_loops=True,
        emit=indices.append,
        source=name,
    )
    return indptr, indices.finish()


def edges_in_rows(
    sources: Array, destinations: Array, num_edges: int, name: str, key: str, remedy: str
) -> NDArray[np.int64]:
    """Return which input edge each entry of `rows_of_pairs` is, [E], to bring edge values into row order.

    Parameters
    ----------
    sources, destinations
        [E] integers, the endpoints of each edge.
    num_edges
        Number of entries in the CSR matrix.
    name, key
        Names of the dataset and of the edge values, for messages.
    remedy
        How a user merges parallel edges, for messages.

    Raises
    ------
    DataError
        If there are parallel edges, because only one of their values could be kept.
    """
    if len(sources) != num_edges:
        raise reject(
            name,
            key,
            "cannot be used where several edges go from one vertex to another, of which hyrt keeps one: give "
            f"each pair of vertices one edge, such as with {remedy}",
        )
    order: NDArray[np.int64] = np.lexsort((sources, destinations))
    return order
