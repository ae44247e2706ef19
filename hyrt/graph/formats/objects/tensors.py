"""Conversion of other libraries' tensors and masks to numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import DataError

Array = NDArray[Any]

_LOW_PRECISION = ("bfloat16", "float8")
"""Floating-point types that numpy does not have. They are converted to float32, which represents all of their
values."""


def as_array(value: Any, where: str) -> Array:
    """Convert a tensor to a numpy array; quantized tensors are dequantized.

    Parameters
    ----------
    value
        A torch tensor, or anything that numpy converts to an array.
    where
        The user's expression for the value, for messages.

    Raises
    ------
    DataError
        If the value is sparse, complex, or not an array of numbers.
    """
    if getattr(value, "layout", None) is not None and "strided" not in str(value.layout):
        raise DataError(f"{where} is sparse: make it dense with .to_dense()")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_quantized:
            value = value.dequantize()
        if any(name in str(value.dtype) for name in _LOW_PRECISION):
            value = value.float()
        try:
            value = value.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(f"{where}: {value.dtype} is not read: convert it, such as to float32") from error
    try:
        array: Array = np.asarray(value)
    except ValueError:
        raise DataError(f"{where} is no array: give one tensor") from None
    if array.dtype.kind == "c":
        raise DataError(
            f"{where} is complex, and hyrt reads real numbers: give its parts as columns, such as with "
            "torch.view_as_real(x).flatten(1)"
        )
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} has values of type {array.dtype.name}: give numbers")
    if not array.ndim:
        raise DataError(f"{where} is the number {show(array)}: give an array")
    return array


def as_mask(values: Array, where: str) -> Array:
    """Convert a mask of bools, or of the numbers 0 and 1, to bool.

    Raises
    ------
    DataError
        If there are other numbers, such as vertex numbers.
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
    """Return the edges of an `adj_t` as built by `ToSparseTensor`, with one row per destination.

    Returns
    -------
    Sources and destinations [2, E], and values [E] in the same order.

    Raises
    ------
    DataError
        If the value is not a sparse matrix.
    """
    if hasattr(matrix, "coo"):  # torch_sparse.SparseTensor
        rows, columns, values = matrix.coo()
        values = np.ones(len(rows)) if values is None else as_array(values, where)
        return np.stack([as_array(columns, where), as_array(rows, where)]), values
    if "sparse" not in str(getattr(matrix, "layout", "")):
        raise DataError(f"{where} is no sparse matrix: give edge_index instead")
    # Do not coalesce, which would sum the values of equal edges.
    coo = matrix.detach().to_sparse_coo()
    return coo._indices().flip(0).cpu().numpy(), as_array(coo._values(), where)
