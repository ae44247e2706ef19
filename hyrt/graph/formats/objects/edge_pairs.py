"""Edges that other libraries keep as pairs of vertices, as rows of incoming edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.check import reject
from hyrt.graph.csr import Store, build_csr

Array = NDArray[Any]


def rows_of_pairs(sources: Array, destinations: Array, num_vertices: int, name: str) -> tuple[Array, Array]:
    """The CSR matrix of directed edges over their destinations, without duplicates.

    Parameters
    ----------
    sources, destinations
        [E] integers, the ends of each edge.
    num_vertices
        How many vertices there are.
    name
        The dataset's, for messages.

    Returns
    -------
    `indptr`, [V+1] int64, and `indices`, int32 or int64, sorted within each row.

    Raises
    ------
    DataError
        If an edge has an end that is no vertex.
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
    """[E] which of the given edges each one of `rows_of_pairs` is: values of edges go into this order.

    Parameters
    ----------
    sources, destinations
        The ends of the given edges.
    num_edges
        How many there are in rows.
    name, key
        What the dataset and the values are called, for messages.
    remedy
        What makes one edge of several between two vertices.

    Raises
    ------
    DataError
        If several edges go from one vertex to another, of which one is kept: nobody knows whose values count.
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
