"""Weights of edges, as other libraries hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

Array = NDArray[Any]


def as_weights(values: Array, num_edges: int, where: str, remedy: str, *, typed: bool) -> Array:
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
    typed
        Whether the graph has relations, whose edges have no features.

    Raises
    ------
    DataError
        If they are not one finite number above 0 for each edge.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.shape != (num_edges,) or values.dtype.kind not in "iuf":
        features = ", and edges of typed graphs have no features" if typed else ""
        raise DataError(
            f"{where}: {values.dtype.name} of shape {list(values.shape)}: weights are one number for each of "
            f"{num_edges:,} edges{features}: to train without them, {remedy}"
        )
    with np.errstate(over="ignore"):
        weights: Array = flat.astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(
            f"{where}: value {flat[at]} at position {at} is no weight: give a finite number above 0, or to "
            f"train without weights, {remedy}"
        )
    return weights
