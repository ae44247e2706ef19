"""The types of edges that a layer tells apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hyrt.errors import UnsupportedModel

Array = NDArray[Any]


def known_types(layer: nn.Module, types: Array | None) -> Array:
    """The types [E] of edges, all of which a layer knows.

    Raises
    ------
    UnsupportedModel
        If edges have no types, or one that the layer does not know.
    """
    if types is None:
        raise without_types(layer)
    known, highest = int(getattr(layer, "edge_types", 0)), int(types.max(initial=0))
    if highest >= known:
        raise UnsupportedModel(
            f"{type(layer).__name__} knows {known} types of edges, from 0 on, but edge "
            f"{int(np.argmax(types))} has type {highest}: give the layer edge_types={highest + 1}"
        )
    return types


def without_types(layer: nn.Module) -> UnsupportedModel:
    """What is said where a layer looks at types of edges that have none."""
    return UnsupportedModel(
        f"{type(layer).__name__} reads edge.type, but the edges have no types: give the dataset the key "
        "edge_type, one number for each edge"
    )
