"""Self loops of the data, given to models that add self loops of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.saga.layer import SagaLayer
from hyrt.quantities import counted


def drop_replaced_loops(graph: Graph, model: torch.nn.Module) -> Graph:
    """Return the graph with the edges that a model reads: without self loops if its layers add their own.

    So each vertex has one self loop in such a layer, as in PyG's `GCNConv` and `GATConv`, and no sampled
    neighbour of a vertex is the vertex itself. Other models take self loops of the data as edges.

    Parameters
    ----------
    graph
        The data, or a graph that this function returned, which is returned as it is.
    model
        A module that has `adds_self_loops`, or parts that have it, such as hyrt's layers; a module of the
        user's own may have that attribute.

    Raises
    ------
    DataError
        If the graph has self loops and some layers add their own while others do not, or if a layer that
        multiplies by weights of edges would replace a self loop of another weight than 1.
    """
    parts = _find_parts(model)
    adding = [type(part).__name__ for part, adds in parts if adds]
    count = graph.topology.num_self_loops if adding else 0
    if not count:
        return graph
    loops = counted(count, "self loop")
    others = [type(part).__name__ for part, adds in parts if not adds]
    if others:
        raise DataError(
            f"{graph.name}: has {loops}, which {adding[0]} replaces by its own and {others[0]} takes as "
            "edges: make all layers of one kind, or remove the self loops from the dataset"
        )
    if any(_multiplies(part) for part, _ in parts):
        _check_weights(graph, loops, adding[0])
    topology = graph.topology.without_self_loops
    return replace(graph, topology=topology, num_loops_left_out=graph.num_loops_left_out + count)


def _find_parts(module: torch.nn.Module) -> list[tuple[torch.nn.Module, bool]]:
    """The parts of a module that say whether they add self loops, and whether they do.

    A module that does not counts only if no part inside it does: it may be made of layers that do.
    """
    adds = getattr(module, "adds_self_loops", None)
    inside = [part for child in module.children() for part in _find_parts(child)]
    if isinstance(adds, bool) and (adds or not any(inner for _, inner in inside)):
        return [(module, adds)]
    return inside


def _multiplies(part: torch.nn.Module) -> bool:
    """Whether a layer multiplies by weights of edges, of which its own self loops have 1."""
    if isinstance(part, SagaLayer):
        return "weight" in part.edge_reads
    what = part.aggregation if isinstance(part, Layer) else None
    return what is not None and what.weighted


def _check_weights(graph: Graph, loops: str, layer: str) -> None:
    """Refuse self loops whose weights a layer would replace by 1."""
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
