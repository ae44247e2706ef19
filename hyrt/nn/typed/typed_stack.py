"""Models of user-defined layers for heterogeneous graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.model import stack
from hyrt.nn.typed.shape_of_graph import shape_of
from hyrt.nn.typed.typed_gnn import TypedGNN


def typed_stack(graph: Graph, *layers: Layer, **between: Any) -> TypedGNN:
    """Build a model for `hyrt.train` from user-defined layers on a heterogeneous graph.

    Parameters
    ----------
    graph
        The heterogeneous graph, from `hyrt.load`: rows of each type are projected to the width of the first
        layer's input, or are embeddings.
    *layers
        The layers, starting at the input. For a layer that reads `edge.type`, relations are edge types.
    **between
        Operations between the layers: `norm`, `residual`, `dropout` and `input_dropout`, as for `stack`.

    Raises
    ------
    ValueError
        If the graph is not heterogeneous, or the widths of the layers do not match.
    """
    shape = shape_of(graph)
    if shape is None:
        raise ValueError(f"{graph.name} has vertices of one type: make the model with hyrt.nn.stack")
    return TypedGNN(replace(stack(*layers, **between).architecture, shape=shape), layers)
