"""Removal of self-loops from the data, for models whose layers add self-loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hyrt.errors import DataError
from hyrt.formatting import pluralize
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.message_passing.layer import SagaLayer


def drop_replaced_loops(graph: Graph, model: torch.nn.Module) -> Graph:
    """Return the graph without self-loops if the layers of a model add self-loops, otherwise unchanged.

    Each vertex then has exactly one self-loop in such a layer, as in PyG's `GCNConv` and `GATConv`, and no
    vertex is sampled as its own neighbour. Other models treat self-loops in the data as edges. User-defined
    modules may declare an attribute `adds_self_loops`, as hyrt layers do.

    Raises DataError if the graph has self-loops and only some layers add them, or if a layer that multiplies
    by edge weights would replace a self-loop with a weight other than 1.
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
            f"{graph.name}: has {loops}, which {adding[0]} replaces by its own and {others[0]} takes as "
            "edges: make all layers of one kind, or remove the self loops from the dataset"
        )
    if any(_multiplies_edge_weights(part) for part, _ in parts):
        _check_weights(graph, loops, adding[0])
    topology = graph.topology.without_self_loops
    return replace(graph, topology=topology, num_loops_left_out=graph.num_loops_left_out + count)


def _find_parts(module: torch.nn.Module) -> list[tuple[torch.nn.Module, bool]]:
    """Return the submodules that declare whether they add self-loops, with their declarations.

    A module that declares False is ignored if a submodule declares True.
    """
    adds = getattr(module, "adds_self_loops", None)
    inside = [part for child in module.children() for part in _find_parts(child)]
    if isinstance(adds, bool) and (adds or not any(inner for _, inner in inside)):
        return [(module, adds)]
    return inside


def _multiplies_edge_weights(part: torch.nn.Module) -> bool:
    """Return whether a layer multiplies by edge weights; self-loops that it adds have weight 1."""
    if isinstance(part, SagaLayer):
        return "weight" in part.edge_fields
    aggregation = part.aggregation if isinstance(part, Layer) else None
    return aggregation is not None and aggregation.weighted


def _check_weights(graph: Graph, loops: str, layer: str) -> None:
    """Reject self-loops whose weights a layer would replace by 1."""
    topology = graph.topology
    weights = topology.edge_weights
    if weights is None:
        return
    edges = np.flatnonzero(topology.is_self_loop)
    wrong = edges[weights[edges] != 1]
    if len(wrong):
        vertex = topology.indices[wrong[0]]
        raise DataError(
            f"{graph.name}: key 'edge_weight': {len(wrong):,} of {loops} have another weight than 1, first "
            f"that of vertex {vertex} ({weights[wrong[0]]:g}), but {layer} gives each vertex a self loop of "
            "weight 1: set these weights to 1, or remove the self loops from the dataset"
        )
