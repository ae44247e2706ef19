"""What edges have of their own, as a layer's edges read it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.saga.program import EdgeProgram

Array = NDArray[Any]


class EdgesWithValues(Protocol):
    """Edges that may have types, weights and features: a topology, or a block."""

    @property
    def indptr(self) -> Any:
        """[n + 1] where the edges into each vertex start."""
        ...

    @property
    def edge_types(self) -> Any:
        """[E] or None."""
        ...

    @property
    def edge_weights(self) -> Any:
        """[E] or None."""
        ...

    @property
    def edge_rows(self) -> Any:
        """[E, d] or None: what is read as `edge.data`."""
        ...


def edge_columns(program: EdgeProgram, layer: nn.Module, edges: EdgesWithValues) -> dict[str, Any]:
    """What a layer reads of edges, by its name: [E] types and weights, [E, d] data.

    Raises
    ------
    UnsupportedModel
        If the edges have not what it reads, a type that it does not know, or another number of columns.
    """
    found: dict[str, Any] = {}
    for name in program.edge_reads:
        values = {"type": edges.edge_types, "weight": edges.edge_weights, "data": edges.edge_rows}[name]
        if values is None:
            raise without_types(layer) if name == "type" else _without(layer, name)
        if name == "type" and isinstance(values, np.ndarray):
            known_types(layer, values)
        columns = int(getattr(layer, "edge_features", 0))
        if name == "data" and values.shape[1] != columns:
            raise UnsupportedModel(
                f"{type(layer).__name__} takes {columns} features of an edge, but edges have "
                f"{values.shape[1]}: give the layer edge_features={values.shape[1]}"
            )
        found[name] = values
    return found


def _without(layer: nn.Module, name: str) -> UnsupportedModel:
    what, key = (
        ("weights", "edge_weight, one number") if name == "weight" else ("features", "edge_features, a row")
    )
    return UnsupportedModel(
        f"{type(layer).__name__} reads edge.{name}, but the edges have no {what}: give the dataset the key "
        f"{key} for each edge"
    )


def loop_rows(name: str, values: Array, indptr: Array) -> Array:
    """[n, ...] what edges from n vertices to themselves have: weight 1, and the mean of a vertex's data.

    Parameters
    ----------
    name
        The name of the column.
    values
        [E, ...] of the other edges, by destination.
    indptr
        [n + 1] where those into each vertex start.
    """
    counts = np.diff(indptr)
    if name == "weight":
        return np.ones((len(counts), 1), values.dtype)
    means = np.zeros((len(counts), values.shape[1]), values.dtype)
    some = np.flatnonzero(counts)
    if len(some):
        sums = np.add.reduceat(values, indptr[some], axis=0, dtype=np.float64)
        means[some] = sums / counts[some, None]
    return means


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
