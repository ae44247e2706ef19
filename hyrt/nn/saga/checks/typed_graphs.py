"""Whether a model and a graph agree on the types of edges."""

from __future__ import annotations

import torch

from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.saga.edge_columns import known_types
from hyrt.nn.saga.layer import SagaLayer


def check_types(model: torch.nn.Module, graph: Graph) -> None:
    """Check that a graph has the types of edges that a model reads, and that they are read where it has some.

    Parameters
    ----------
    model
        The model; one that is not made of hyrt's layers is taken to read none.
    graph
        The graph that it is applied to.

    Raises
    ------
    UnsupportedModel
        Naming the layer, if the model reads types that the graph has not, or does not know one of them.
    DataError
        If the graph has types and nothing reads them.
    """
    if isinstance(model, GNN) and any(
        isinstance(each, Layer) and each.takes_relations for each in model.layers
    ):
        return
    layers = [each for each in model.layers if isinstance(each, SagaLayer)] if isinstance(model, GNN) else []
    readers = [each for each in layers if each.edge_types]
    types = graph.topology.edge_types
    for layer in readers:
        known_types(layer, types)
    if types is not None and not readers:
        raise DataError(
            f"{graph.name}: key 'edge_type': no layer of the model looks at types of edges, so they would be "
            "left out: choose a model that does, such as model.kind=ggnn with model.options={edge_types: "
            f"{int(types.max(initial=0)) + 1}}}, or write the dataset again without this key"
        )
