"""Check that a model and a graph match in edge types."""

from __future__ import annotations

import torch

from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.saga.edge_columns import known_types
from hyrt.nn.saga.layer import SagaLayer


def check_types(model: torch.nn.Module, graph: Graph) -> None:
    """Check that a graph has the edge types that a model reads, and no unused ones.

    Parameters
    ----------
    model
        The model; a model that does not consist of hyrt layers is assumed to read no edge types.
    graph
        The graph.

    Raises
    ------
    UnsupportedModel
        If a layer reads edge types and the graph has none, or has a type that is out of the layer's range.
    DataError
        If the graph has edge types that no layer reads.
    """
    if isinstance(model, GNN) and any(
        isinstance(layer, Layer) and layer.takes_relations for layer in model.layers
    ):
        return
    layers = (
        [layer for layer in model.layers if isinstance(layer, SagaLayer)] if isinstance(model, GNN) else []
    )
    readers = [layer for layer in layers if layer.edge_types]
    types = graph.topology.edge_types
    for layer in readers:
        known_types(layer, types)
    if types is not None and not readers:
        raise DataError(
            f"{graph.name}: key 'edge_type': no layer of the model looks at types of edges, so they would be "
            "left out: choose a model that does, such as model.kind=ggnn with model.options={edge_types: "
            f"{int(types.max(initial=0)) + 1}}}, or write the dataset again without this key"
        )
