"""Tensors of other libraries as numpy arrays, and masks among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

Array = NDArray[Any]

_NARROW = ("bfloat16", "float8")
"""What numpy has no floating-point numbers of: they are widened to float32, which holds each of them."""


def as_array(value: Any, where: str) -> Array:
    """Return a tensor as a numpy array; quantized values as the numbers that they stand for.

    Parameters
    ----------
    value
        A tensor of torch, or what numpy takes for an array.
    where
        What a user calls it, for messages.

    Raises
    ------
    DataError
        If it is sparse or complex, or no array of numbers.
    """
    if getattr(value, "layout", None) is not None and "strided" not in str(value.layout):
        raise DataError(f"{where} is sparse: make it dense with .to_dense()")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_quantized:
            value = value.dequantize()
        if any(name in str(value.dtype) for name in _NARROW):
            value = value.float()
        try:
            value = value.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(f"{where}: {value.dtype} is not read: convert it, such as to float32") from error
    try:
        found: Array = np.asarray(value)
    except ValueError:
        raise DataError(f"{where} is no array: give one tensor") from None
    if found.dtype.kind == "c":
        raise DataError(
            f"{where} is complex, and hyrt reads real numbers: give its parts as columns, such as with "
            "torch.view_as_real(x).flatten(1)"
        )
    if found.dtype.kind not in "biuf":
        raise DataError(f"{where} has values of type {found.dtype.name}: give numbers")
    return found


def as_mask(values: Array, where: str) -> Array:
    """Return a mask as bool; it may also be of the numbers 0 and 1.

    Raises
    ------
    DataError
        If there are other numbers, such as the numbers of vertices.
    """
    if values.dtype == np.bool_:
        return np.ascontiguousarray(values)
    if not ((values == 0) | (values == 1)).all():
        raise DataError(
            f"{where} has other values than 0 and 1: give true or false for each vertex, not the numbers of "
            "vertices"
        )
    return values.astype(np.bool_)


def edges_of_matrix(matrix: Any, where: str) -> tuple[Array, Array]:
    """Return the edges of an `adj_t`, as `ToSparseTensor` makes it: one row for each destination.

    Returns
    -------
    [2, E] sources and destinations, and [E] the values, in the same order.

    Raises
    ------
    DataError
        If it is no sparse matrix.
    """
    if hasattr(matrix, "coo"):  # A SparseTensor of torch_sparse.
        rows, columns, values = matrix.coo()
        values = np.ones(len(rows)) if values is None else as_array(values, where)
        return np.stack([as_array(columns, where), as_array(rows, where)]), values
    if "sparse" not in str(getattr(matrix, "layout", "")):
        raise DataError(f"{where} is no sparse matrix: give edge_index instead")
    # Not coalesced: values of equal edges would be added up to weights.
    found = matrix.detach().to_sparse_coo()
    return found._indices().flip(0).cpu().numpy(), as_array(found._values(), where)
