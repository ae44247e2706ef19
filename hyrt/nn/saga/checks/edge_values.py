"""Check that a model and a graph match in edge weights and edge features."""

from __future__ import annotations

import torch

from hyrt.errors import DataError, UnsupportedModel
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.own_modules.conv_stack import ConvStack
from hyrt.nn.saga.layer import SagaLayer


def check_edge_values(model: torch.nn.Module, graph: Graph, *, drawn_by: bool = False) -> None:
    """Check that a graph has the edge weights and features that a model reads, and no unused ones.

    Parameters
    ----------
    model
        The model; a user-defined torch module is assumed to read the blocks as needed.
    graph
        The graph.
    drawn_by
        Whether the sampler uses the weights, so that the model may ignore them.

    Raises
    ------
    UnsupportedModel
        If the model reads values that the graph does not have, or another width; the message names the layer.
    DataError
        If the graph has weights or features that no layer reads.
    """
    topology, name = graph.topology, graph.name
    if isinstance(model, ConvStack):
        model.check_edges(name, has_weights=topology.edge_weights is not None, width=_width(graph))
        return
    if not isinstance(model, GNN):
        return
    layers: list[Layer] = [layer for layer in model.layers if isinstance(layer, Layer)]
    for number, layer in enumerate(layers, 1):
        if isinstance(layer, SagaLayer) or layer.edge_features:
            _check_layer(f"layer {number} ({type(layer).__name__})", layer, graph)
    is_hetero = graph.types is not None
    if topology.edge_weights is not None and not drawn_by and not any(map(_multiplies, layers)):
        remedy = (
            "rgcn, rsage or rgat"
            if is_hetero
            else "gcn, gin, edge-gat, or graphsage with model.aggregate=mean or sum"
        )
        raise DataError(
            f"{name}: key 'edge_weight': no layer of the model multiplies by weights of edges, so they would "
            f"be left out: choose model.kind={remedy}, or write the dataset again without this key"
        )
    if topology.edge_features is not None and not any(_reads(layer, "data") for layer in layers):
        remedy = (
            "model.kind=rgat, or layers of your own that read edge.data"
            if is_hetero
            else "model.kind=gine or edge-gat"
        )
        raise DataError(
            f"{name}: key 'edge_features': no layer of the model looks at features of edges, so they would "
            f"be left out: choose {remedy}, or write the dataset again without this key"
        )


def _width(graph: Graph) -> int:
    features = graph.topology.edge_features
    return 0 if features is None else int(features.shape[1])


def _check_layer(name: str, layer: Layer, graph: Graph) -> None:
    topology, width = graph.topology, graph.topology.edge_width
    if _reads(layer, "weight") and topology.edge_weights is None:
        raise UnsupportedModel(
            f"{name} reads edge.weight, but the edges of {graph.name} have no weights: give the dataset the "
            "key edge_weight, one number for each edge"
        )
    if not _reads(layer, "data"):
        return
    if width == 0:
        raise UnsupportedModel(
            f"{name} reads edge.data, but the edges of {graph.name} have no features: give the dataset the "
            "key edge_features, one row for each edge"
        )
    if width != layer.edge_features:
        raise UnsupportedModel(
            f"{name} takes {layer.edge_features} features of an edge, but those of {graph.name} have "
            f"{width}: give the layer edge_features={width}"
        )


def _multiplies(layer: Layer) -> bool:
    """Return whether a layer's result depends on edge weights."""
    if layer.multiplies_weights:
        return True
    aggregation = layer.aggregation
    if aggregation is not None and aggregation.weighted and aggregation.reduce != "max":
        return True
    return _reads(layer, "weight") or _reads(layer, "data")


def _reads(layer: Layer, field: str) -> bool:
    if isinstance(layer, SagaLayer):
        return field in layer.edge_reads
    return field == "data" and layer.edge_features > 0
