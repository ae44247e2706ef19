"""Checks that a model fits the edges of a graph and a device that runs loops, and removal of self-loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hyrt.errors import DataError, UnsupportedModelError
from hyrt.formatting import pluralize
from hyrt.graph.graph import Graph
from hyrt.nn.conv_stack import ConvStack
from hyrt.nn.description import overrides_only, suggest_device
from hyrt.nn.fused.fused_gather import masked_attention_gather
from hyrt.nn.layer import AttentionSum, Layer, LayerParts
from hyrt.nn.message_passing.gather import check_edge_types
from hyrt.nn.message_passing.layer import SagaLayer
from hyrt.nn.model import GNN


def check_edge_values(model: torch.nn.Module, graph: Graph, *, sampler_uses_weights: bool = False) -> None:
    """Check that a graph has all edge weights and features that a model reads, and no others.

    User-defined torch modules are assumed to read the blocks as needed. If `sampler_uses_weights`, the model
    need not read the weights. Raises UnsupportedModelError for missing values and wrong widths, and DataError
    for weights or features that no layer reads.
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
    if topology.edge_weights is not None and not sampler_uses_weights and not any(map(_multiplies, layers)):
        remedy = (
            "rgcn, rsage or rgat"
            if is_hetero
            else "gcn, gin, edge-gat, or graphsage with model.aggregate=mean or sum"
        )
        raise DataError(
            f"no layer of the model uses the edge weights of {name} (key 'edge_weight'): choose "
            f"model.kind={remedy}, or rewrite the dataset without this key"
        )
    if topology.edge_features is not None and not any(_reads(layer, "data") for layer in layers):
        remedy = (
            "model.kind=rgat, or custom layers that read edge.data"
            if is_hetero
            else "model.kind=gine or edge-gat"
        )
        raise DataError(
            f"no layer of the model uses the edge features of {name} (key 'edge_features'): choose "
            f"{remedy}, or rewrite the dataset without this key"
        )


def _width(graph: Graph) -> int:
    features = graph.topology.edge_features
    return 0 if features is None else int(features.shape[1])


def _check_layer(name: str, layer: Layer, graph: Graph) -> None:
    topology, width = graph.topology, graph.topology.edge_width
    if _reads(layer, "weight") and topology.edge_weights is None:
        raise UnsupportedModelError(
            f"{name} reads edge.weight, but the edges of {graph.name} have no weights: add the key "
            "edge_weight to the dataset, with one number per edge"
        )
    if not _reads(layer, "data"):
        return
    if width == 0:
        raise UnsupportedModelError(
            f"{name} reads edge.data, but the edges of {graph.name} have no features: add the key "
            "edge_features to the dataset, with one row per edge"
        )
    if width != layer.edge_features:
        raise UnsupportedModelError(
            f"{name} has edge_features={layer.edge_features}, but the edges of {graph.name} have {width} "
            f"features: create the layer with edge_features={width}"
        )


def _multiplies(layer: Layer) -> bool:
    """Return whether the result of a layer depends on edge weights."""
    if layer.multiplies_weights:
        return True
    aggregation = layer.aggregation
    if aggregation is not None and aggregation.weighted and aggregation.reduce != "max":
        return True
    return _reads(layer, "weight") or _reads(layer, "data")


def _reads(layer: Layer, field: str) -> bool:
    if isinstance(layer, SagaLayer):
        return field in layer.edge_fields
    return field == "data" and layer.edge_features > 0


def check_types(model: torch.nn.Module, graph: Graph) -> None:
    """Check that a graph has the edge types that a model reads, and no edge types if it reads none.

    Models without hyrt layers are assumed to read no edge types. Raises UnsupportedModelError if the graph
    has no types or a layer does not support some of them, and DataError if no layer reads the types.
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
        check_edge_types(layer, types)
    if types is not None and not readers:
        raise DataError(
            f"no layer of the model uses the edge types of {graph.name} (key 'edge_type'): choose a model "
            "that does, such as model.kind=ggnn with model.options={edge_types: "
            f"{int(types.max(initial=0)) + 1}}}, or rewrite the dataset without this key"
        )


def has_saga_layers(model: torch.nn.Module) -> bool:
    """Return whether a model has a `SagaLayer`."""
    return isinstance(model, GNN) and any(isinstance(layer, SagaLayer) for layer in model.layers)


def needs_loops(model: torch.nn.Module) -> bool:
    """Return whether a device with aggregation and product kernels must run the model's edge loops instead.

    The host then computes the vertex-wise stages. Such a model is a chain of layers of which at least one is
    not an aggregation followed by products: a `SagaLayer`, attention, a maximum or a norm.
    """
    if not isinstance(model, GNN) or overrides_only(type(model), "forward", "layer"):
        return False
    if has_saga_layers(model):
        return True
    if not all(_parts(layer) is not None for layer in model.layers):
        return False
    try:
        model.description()
    except UnsupportedModelError:
        return True
    return False


def _parts(layer: torch.nn.Module) -> LayerParts | None:
    """Return the stages of a layer; None if the layer has none or overrides `forward`."""
    if not isinstance(layer, Layer) or overrides_only(type(layer), "forward", "parts"):
        return None
    return layer.parts(multiply_first=False)


def check_loops(model: torch.nn.Module, device: str) -> None:
    """Check that the edge computation of every layer can be fused into one loop.

    Raises UnsupportedModelError; the message gives the layer, the reason and `device`.
    """
    assert isinstance(model, GNN)
    remedy = suggest_device(device)
    if overrides_only(type(model), "forward", "layer"):
        raise UnsupportedModelError(
            f"{type(model).__name__} has a custom forward(), but {device} runs models layer by layer: "
            f"{remedy}"
        )
    for i, layer in enumerate(model.layers):
        name = f"layer 'layers.{i}' ({type(layer).__name__})"
        parts = _parts(layer)
        if parts is None:
            raise UnsupportedModelError(
                f"{name} has a custom forward(), from which {device} cannot derive the edge computation: "
                f"{remedy}"
            )
        if isinstance(layer, SagaLayer):
            was_training = layer.training
            reason = layer.train().unfused_reason
            layer.train(was_training)
            if reason:
                is_built_in = type(layer).__module__.startswith("hyrt.")
                change = "" if is_built_in else "change that line as described in docs/layers.md, or "
                raise UnsupportedModelError(
                    f"{device} cannot run the edges of {name} in one fused loop ({reason}): {change}{remedy}"
                )
        elif isinstance(parts.gather, AttentionSum):
            heads = parts.gather.heads
            gather = masked_attention_gather(heads, parts.gathered_width // heads, parts.gather.slope, None)
            if gather.unfused_reason:
                raise UnsupportedModelError(
                    f"{device} cannot run {name}, because {gather.unfused_reason}: {remedy}"
                )
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes - {torch.float32}:
        raise UnsupportedModelError(
            f"{type(model).__name__} has parameters of {', '.join(sorted(map(str, dtypes)))}, but {device} "
            f"supports only float32: {remedy}"
        )


def drop_replaced_loops(graph: Graph, model: torch.nn.Module) -> Graph:
    """Return the graph without self-loops if layers of the model add self-loops, otherwise unchanged.

    In such a layer, each vertex then has exactly one self-loop, as in PyG's `GCNConv` and `GATConv`, and no
    vertex is sampled as its own neighbour. Other models treat self-loops in the data like any edge. A
    user-defined module may declare an attribute `adds_self_loops`, as hyrt layers do.

    Raises DataError if the graph has self-loops that only some layers would replace, or if a layer that
    multiplies by edge weights would replace a self-loop with a weight other than 1.
    """
    parts = _find_parts(model)
    adding = [type(part).__name__ for part, adds in parts if adds]
    count = graph.topology.num_self_loops if adding else 0
    if not count:
        return graph
    loops = pluralize(count, "self loop")
    others = [type(part).__name__ for part, adds in parts if not adds]
    if others:
        raise DataError(
            f"{graph.name} has {loops}, which {adding[0]} would replace, but {others[0]} would treat like "
            "other edges: use layers of one kind, or remove the self loops from the dataset"
        )
    if any(_multiplies_edge_weights(part) for part, _ in parts):
        _check_weights(graph, loops, adding[0])
    topology = graph.topology.without_self_loops
    return replace(graph, topology=topology, num_loops_left_out=graph.num_loops_left_out + count)


def _find_parts(module: torch.nn.Module) -> list[tuple[torch.nn.Module, bool]]:
    """Return each submodule that declares whether it adds self-loops, with the declared value.

    A module that declares False is ignored if a submodule declares True.
    """
    adds = getattr(module, "adds_self_loops", None)
    inside = [part for child in module.children() for part in _find_parts(child)]
    if isinstance(adds, bool) and (adds or not any(inner for _, inner in inside)):
        return [(module, adds)]
    return inside


def _multiplies_edge_weights(part: torch.nn.Module) -> bool:
    """Return whether a module multiplies by edge weights. Self-loops that it adds have weight 1."""
    if isinstance(part, SagaLayer):
        return "weight" in part.edge_fields
    aggregation = part.aggregation if isinstance(part, Layer) else None
    return aggregation is not None and aggregation.weighted


def _check_weights(graph: Graph, loops: str, layer: str) -> None:
    """Reject self-loops with weights that a layer would replace by 1."""
    topology = graph.topology
    weights = topology.edge_weights
    if weights is None:
        return
    edges = np.flatnonzero(topology.is_self_loop)
    wrong = edges[weights[edges] != 1]
    if len(wrong):
        vertex = topology.indices[wrong[0]]
        raise DataError(
            f"in {graph.name} (key 'edge_weight'), {len(wrong):,} of {loops} have a weight other than 1, "
            f"first vertex {vertex} ({weights[wrong[0]]:g}), but {layer} adds self loops with weight 1: set "
            "these weights to 1, or remove the self loops from the dataset"
        )
