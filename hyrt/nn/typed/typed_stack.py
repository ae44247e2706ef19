"""A model of layers of one's own for a typed graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.model import stack
from hyrt.nn.typed.shape_of_graph import shape_of
from hyrt.nn.typed.typed_gnn import TypedGNN


def typed_stack(graph: Graph, *layers: Layer, **between: Any) -> TypedGNN:
    """A model of layers of your own for a typed graph, for `hyrt.train`.

    Parameters
    ----------
    graph
        The typed graph, from `hyrt.load`: rows of each type are mapped to the columns that the first layer
        takes, or learned.
    *layers
        The layers, the input's first. To a layer that reads `edge.type`, relations are types of edges.
    **between
        What is done between the layers: `norm`, `residual`, `dropout` and `input_dropout`, as for `stack`.

    Raises
    ------
    ValueError
        If the graph is not typed, or the widths of the layers do not go together.
    """
    shape = shape_of(graph)
    if shape is None:
        raise ValueError(f"{graph.name} has vertices of one type: make the model with hyrt.nn.stack")
    return TypedGNN(replace(stack(*layers, **between).architecture, shape=shape), layers)
