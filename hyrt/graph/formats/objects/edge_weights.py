"""Conversion of other libraries' edge weights and edge features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

Array = NDArray[Any]


def as_weights(values: Array, num_edges: int, where: str, remedy: str) -> Array:
    """Convert values [e] or [e, 1] to float32 edge weights [e].

    Parameters
    ----------
    values
        The library's values.
    num_edges
        e, the number of edges, of one relation in a heterogeneous graph.
    where
        The user's expression for the values, for messages.
    remedy
        How a user removes the values, for messages.

    Raises
    ------
    DataError
        If the values are not one finite number above 0 per edge.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.shape != (num_edges,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: {values.dtype.name} of shape {list(values.shape)}: weights are one number for each of "
            f"{num_edges:,} edges: to train without them, {remedy}"
        )
    with np.errstate(over="ignore"):
        weights: Array = flat.astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        index = int(wrong.argmax())
        raise DataError(
            f"{where}: value {flat[index]} at position {index} is not a valid weight: give a finite number "
            f"above 0, or to train without weights, {remedy}"
        )
    return weights


def as_edge_features(values: Array, num_edges: int, where: str, remedy: str) -> Array:
    """Convert values [e, d] or [e] to float32 edge features [e, d].

    Parameters
    ----------
    values, num_edges, where, remedy
        As in `as_weights`.

    Raises
    ------
    DataError
        If the values are not a row of finite numbers per edge.
    """
    rows = values[:, None] if values.ndim == 1 else values
    if rows.ndim != 2 or len(rows) != num_edges or not rows.shape[1] or values.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: {values.dtype.name} of shape {list(values.shape)}: features are a row of numbers for "
            f"each of {num_edges:,} edges: to train without them, {remedy}"
        )
    with np.errstate(over="ignore"):
        features: Array = np.ascontiguousarray(rows, np.float32)
    wrong = ~np.isfinite(features).all(1)
    if wrong.any():
        index = int(wrong.argmax())
        raise DataError(
            f"{where}: row {index} has a value that is not a finite number: correct it, or to train without "
            "features of edges, "
            f"{remedy}"
        )
    return features
