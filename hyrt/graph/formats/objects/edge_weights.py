"""Weights and features of edges, as other libraries hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

Array = NDArray[Any]


def as_weights(values: Array, num_edges: int, where: str, remedy: str) -> Array:
    """[e] float32 weights of values [e] or [e, 1].

    Parameters
    ----------
    values
        What the library has.
    num_edges
        e, how many edges there are, those of one relation where the graph has several.
    where
        What a user calls the values, for messages.
    remedy
        What a user does to train without them.

    Raises
    ------
    DataError
        If they are not one finite number above 0 for each edge.
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
        at = int(wrong.argmax())
        raise DataError(
            f"{where}: value {flat[at]} at position {at} is not a valid weight: give a finite number above "
            f"0, or to train without weights, {remedy}"
        )
    return weights


def as_edge_features(values: Array, num_edges: int, where: str, remedy: str) -> Array:
    """[e, d] float32 features of edges [e, d] or [e].

    Parameters
    ----------
    values, num_edges, where, remedy
        What messages call them, and how to leave them out, as for `as_weights`.

    Raises
    ------
    DataError
        If they are not a row of finite numbers for each edge.
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
        at = int(wrong.argmax())
        raise DataError(
            f"{where}: row {at} has a value that is not a finite number: correct it, or to train without "
            "features of edges, "
            f"{remedy}"
        )
    return features
