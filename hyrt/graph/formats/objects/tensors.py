"""Conversion of other libraries' tensors, edge lists, edge weights and edge features to numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import DataError
from hyrt.graph.check import reject
from hyrt.graph.csr import ArrayBuilder, build_csr

Array = NDArray[Any]

_LOW_PRECISION = ("bfloat16", "float8")
"""Floating-point types without a numpy equivalent, which are converted to float32 exactly."""


def as_array(value: Any, location: str) -> Array:
    """Convert a torch tensor or array-like to a numpy array; quantized tensors are dequantized.

    `location` is the user's expression for the value, for messages. Raises DataError if the value is sparse,
    complex, or not an array of numbers.
    """
    if getattr(value, "layout", None) is not None and "strided" not in str(value.layout):
        raise DataError(f"{location} is sparse: make it dense with .to_dense()")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_quantized:
            value = value.dequantize()
        if any(name in str(value.dtype) for name in _LOW_PRECISION):
            value = value.float()
        try:
            value = value.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(
                f"{location}: {value.dtype} is not read: convert it, such as to float32"
            ) from error
    try:
        array: Array = np.asarray(value)
    except ValueError:
        raise DataError(f"{location} is no array: give one tensor") from None
    if array.dtype.kind == "c":
        raise DataError(
            f"{location} is complex, and hyrt reads real numbers: give its parts as columns, such as with "
            "torch.view_as_real(x).flatten(1)"
        )
    if array.dtype.kind not in "biuf":
        raise DataError(f"{location} has values of type {array.dtype.name}: give numbers")
    if not array.ndim:
        raise DataError(f"{location} is the number {show(array)}: give an array")
    return array


def as_mask(values: Array, location: str) -> Array:
    """Convert a mask of bools, or of the numbers 0 and 1, to bool. Raises DataError for other numbers."""
    if values.dtype == np.bool_:
        return np.ascontiguousarray(values)
    if not ((values == 0) | (values == 1)).all():
        raise DataError(
            f"{location} has other values than 0 and 1: give true or false for each vertex, not the numbers "
            "of vertices"
        )
    return values.astype(np.bool_)


def read_adjacency(matrix: Any, location: str) -> tuple[Array, Array]:
    """Return the edges of an `adj_t` as built by `ToSparseTensor`, with one row per destination.

    Returns sources and destinations [2, E], and values [E]. Raises DataError if the value is not a sparse
    matrix.
    """
    if hasattr(matrix, "coo"):  # torch_sparse.SparseTensor
        rows, columns, values = matrix.coo()
        values = np.ones(len(rows)) if values is None else as_array(values, location)
        return np.stack([as_array(columns, location), as_array(rows, location)]), values
    if "sparse" not in str(getattr(matrix, "layout", "")):
        raise DataError(f"{location} is no sparse matrix: give edge_index instead")
    # Do not coalesce, which would sum the values of equal edges.
    coo = matrix.detach().to_sparse_coo()
    return coo._indices().flip(0).cpu().numpy(), as_array(coo._values(), location)


def build_csr_of_pairs(
    sources: Array, destinations: Array, num_vertices: int, name: str
) -> tuple[Array, Array]:
    """Build the CSR matrix of directed edges [E] by destination, without duplicates.

    Returns indptr [V+1] int64 and indices int32 or int64, sorted within each row. Raises DataError if an
    endpoint is not a vertex.
    """
    indices = ArrayBuilder(np.dtype(np.int32 if num_vertices < 2**31 else np.int64))
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


def find_csr_order(
    sources: Array, destinations: Array, num_edges: int, name: str, key: str, remedy: str
) -> NDArray[np.int64]:
    """Return the input position of each entry of `build_csr_of_pairs`, to put edge values into row order.

    Raises DataError if there are parallel edges, because only one of their values could be kept; `key` names
    the values, and `remedy` is how a user merges parallel edges.
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


def as_weights(values: Array, num_edges: int, location: str, remedy: str) -> Array:
    """Convert values [e] or [e, 1] to float32 edge weights [e].

    `location` is the user's expression for the values, and `remedy` is how a user removes them. Raises
    DataError if they are not one finite number above 0 per edge.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.shape != (num_edges,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"{location}: {values.dtype.name} of shape {list(values.shape)}: weights are one number for "
            f"each of {num_edges:,} edges: to train without them, {remedy}"
        )
    with np.errstate(over="ignore"):
        weights: Array = flat.astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        index = int(wrong.argmax())
        raise DataError(
            f"{location}: value {flat[index]} at position {index} is not a valid weight: give a finite "
            f"number above 0, or to train without weights, {remedy}"
        )
    return weights


def as_edge_features(values: Array, num_edges: int, location: str, remedy: str) -> Array:
    """Convert values [e, d] or [e] to float32 edge features [e, d], like `as_weights`.

    Raises DataError if the values are not a row of finite numbers per edge.
    """
    rows = values[:, None] if values.ndim == 1 else values
    if rows.ndim != 2 or len(rows) != num_edges or not rows.shape[1] or values.dtype.kind not in "biuf":
        raise DataError(
            f"{location}: {values.dtype.name} of shape {list(values.shape)}: features are a row of numbers "
            f"for each of {num_edges:,} edges: to train without them, {remedy}"
        )
    with np.errstate(over="ignore"):
        features: Array = np.ascontiguousarray(rows, np.float32)
    wrong = ~np.isfinite(features).all(1)
    if wrong.any():
        index = int(wrong.argmax())
        raise DataError(
            f"{location}: row {index} has a value that is not a finite number: correct it, or to train "
            f"without features of edges, {remedy}"
        )
    return features
