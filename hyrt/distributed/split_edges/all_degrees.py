"""What a rank has to know of all vertices where it has the edges into its own ones alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology


def with_all_degrees(graph: Graph, group: RankGroup) -> Graph:
    """A graph of own edges that knows the in-degrees, and sums of weights, of all vertices; every rank calls
    it at once.

    Layers that weigh neighbours by degree (GCN) need them, of sources at other ranks too.

    Parameters
    ----------
    graph
        The edges into the vertices of this rank; others seem to have none.
    group
        The ranks.
    """
    own = graph.topology
    degrees = torch.from_numpy(own.in_degrees.copy())
    group.add(degrees, "edges")
    topology = Topology(own.indptr, own.indices, own.edge_types, own.edge_weights, own.edge_features)
    # What would be read off the edges that are not here.
    topology.__dict__["in_degrees"] = degrees.numpy()
    if own.edge_weights is not None:
        # The edges into a vertex are at one rank: nothing is rounded.
        sums = torch.from_numpy(own.weighted_degrees.copy())
        group.add(sums, "edges")
        topology.__dict__["weighted_degrees"] = sums.numpy()
    return replace(graph, topology=topology)
