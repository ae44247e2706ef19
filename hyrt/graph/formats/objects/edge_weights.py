"""Weights of the edges of one relation, as other libraries hold them."""

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
        e, how many edges the relation has.
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
            f"{where}: {values.dtype.name} of shape {list(values.shape)}: edges of typed graphs may have "
            f"weights, one number for each of {num_edges:,} edges, and no features: to train without them, "
            f"{remedy}"
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
