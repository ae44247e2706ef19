"""Whether a model and a graph agree on the weights and features of edges."""

from __future__ import annotations

import torch

from hyrt.errors import DataError, UnsupportedModel
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.own_modules.conv_stack import ConvStack
from hyrt.nn.saga.layer import SagaLayer


def check_edge_values(model: torch.nn.Module, graph: Graph, *, drawn_by: bool = False) -> None:
    """Check that a graph has the weights and features of edges that a model reads, and that it reads them.

    Parameters
    ----------
    model
        The model; a torch module of the user's own is taken to read what it needs of its blocks.
    graph
        The graph that it is applied to.
    drawn_by
        Whether the sampler reads the weights, so that the model need not.

    Raises
    ------
    UnsupportedModel
        Naming the layer, if the model reads what the graph has not, or other widths.
    DataError
        If the graph has weights or features and nothing reads them.
    """
    topology, name = graph.topology, graph.name
    if isinstance(model, ConvStack):
        model.check_edges(name, has_weights=topology.edge_weights is not None, width=_width(graph))
        return
    if not isinstance(model, GNN):
        return
    layers: list[Layer] = [each for each in model.layers if isinstance(each, Layer)]
    for number, layer in enumerate(layers, 1):
        if isinstance(layer, SagaLayer) or layer.edge_features:
            _check_layer(f"layer {number} ({type(layer).__name__})", layer, graph)
    typed = graph.types is not None
    if topology.edge_weights is not None and not drawn_by and not any(map(_multiplies, layers)):
        remedy = (
            "rgcn, rsage or rgat"
            if typed
            else "gcn, gin, edge-gat, or graphsage with model.aggregate=mean or sum"
        )
        raise DataError(
            f"{name}: key 'edge_weight': no layer of the model multiplies by weights of edges, so they would "
            f"be left out: choose model.kind={remedy}, or write the dataset again without this key"
        )
    if topology.edge_features is not None and not any(_reads(layer, "data") for layer in layers):
        remedy = (
            "model.kind=rgat, or layers of your own that read edge.data"
            if typed
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
    """Whether a layer's result depends on the weights of edges."""
    if layer.multiplies_weights:
        return True
    what = layer.aggregation
    if what is not None and what.weighted and what.reduce != "max":
        return True
    return _reads(layer, "weight") or _reads(layer, "data")


def _reads(layer: Layer, what: str) -> bool:
    if isinstance(layer, SagaLayer):
        return what in layer.edge_reads
    return what == "data" and layer.edge_features > 0
