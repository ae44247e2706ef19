"""Types, weights and features of edges, as input of `apply_edge`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.saga.program import EdgeProgram

Array = NDArray[Any]


class EdgesWithValues(Protocol):
    """Edges with optional types, weights and features: a topology or a block."""

    @property
    def indptr(self) -> Any:
        """Return [n + 1], the start of each vertex's incoming edges."""
        ...

    @property
    def edge_types(self) -> Any:
        """Return [E] or None."""
        ...

    @property
    def edge_weights(self) -> Any:
        """Return [E] or None."""
        ...

    @property
    def edge_rows(self) -> Any:
        """Return [E, d] or None: the values of `edge.data`."""
        ...


def edge_columns(program: EdgeProgram, layer: nn.Module, edges: EdgesWithValues) -> dict[str, Any]:
    """Return the edge values that a layer reads, by name: [E] types and weights, [E, d] data.

    Raises
    ------
    UnsupportedModel
        If a value that the layer reads is missing, a type is out of range, or a width differs.
    """
    result: dict[str, Any] = {}
    for name in program.edge_reads:
        values = {"type": edges.edge_types, "weight": edges.edge_weights, "data": edges.edge_rows}[name]
        if values is None:
            raise without_types(layer) if name == "type" else _missing_values_error(layer, name)
        if name == "type" and isinstance(values, np.ndarray):
            known_types(layer, values)
        columns = int(getattr(layer, "edge_features", 0))
        if name == "data" and values.shape[1] != columns:
            raise UnsupportedModel(
                f"{type(layer).__name__} takes {columns} features of an edge, but edges have "
                f"{values.shape[1]}: give the layer edge_features={values.shape[1]}"
            )
        result[name] = values
    return result


def _missing_values_error(layer: nn.Module, name: str) -> UnsupportedModel:
    description, key = (
        ("weights", "edge_weight, one number") if name == "weight" else ("features", "edge_features, a row")
    )
    return UnsupportedModel(
        f"{type(layer).__name__} reads edge.{name}, but the edges have no {description}: give the dataset "
        f"the key {key} for each edge"
    )


def loop_rows(name: str, values: Array, indptr: Array) -> Array:
    """Return the values of n self-loops, [n, ...]: weight 1, and the mean of the vertex's edge data.

    Parameters
    ----------
    name
        Name of the column.
    values
        [E, ...], values of the other edges, by destination.
    indptr
        [n + 1], start of each vertex's incoming edges.
    """
    counts = np.diff(indptr)
    if name == "weight":
        return np.ones((len(counts), 1), values.dtype)
    means = np.zeros((len(counts), values.shape[1]), values.dtype)
    nonempty = np.flatnonzero(counts)
    if len(nonempty):
        sums = np.add.reduceat(values, indptr[nonempty], axis=0, dtype=np.float64)
        means[nonempty] = sums / counts[nonempty, None]
    return means


def known_types(layer: nn.Module, types: Array | None) -> Array:
    """Return the edge types [E] after checking that a layer supports them.

    Raises
    ------
    UnsupportedModel
        If edges have no types, or a type that is out of the layer's range.
    """
    if types is None:
        raise without_types(layer)
    num_types, highest = int(getattr(layer, "edge_types", 0)), int(types.max(initial=0))
    if highest >= num_types:
        raise UnsupportedModel(
            f"{type(layer).__name__} knows {num_types} types of edges, from 0 on, but edge "
            f"{int(np.argmax(types))} has type {highest}: give the layer edge_types={highest + 1}"
        )
    return types


def without_types(layer: nn.Module) -> UnsupportedModel:
    """Return the error for a layer that reads edge types if the edges have none."""
    return UnsupportedModel(
        f"{type(layer).__name__} reads edge.type, but the edges have no types: give the dataset the key "
        "edge_type, one number for each edge"
    )
