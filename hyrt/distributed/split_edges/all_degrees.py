"""Global in-degrees for partitioned topology."""

from __future__ import annotations

from dataclasses import replace

import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology


def with_all_degrees(graph: Graph, group: RankGroup) -> Graph:
    """Return the graph of a rank's edges with the global in-degrees and sums of edge weights of all vertices.

    Layers that weight neighbours by degree (GCN) need the degrees of remote sources. Every rank must call it
    at
    the same time.

    Parameters
    ----------
    graph
        The edges into the vertices of this rank; other vertices appear to have no incoming edges.
    group
        The ranks.
    """
    local = graph.topology
    degrees = torch.from_numpy(local.in_degrees.copy())
    group.add(degrees, "edges")
    topology = Topology(
        local.indptr, local.indices, local.edge_types, local.edge_weights, local.edge_features
    )
    # Override values that would be computed from the local edges only.
    topology.__dict__["in_degrees"] = degrees.numpy()
    if local.edge_weights is not None:
        # All edges into a vertex are at one rank, so the sum adds zeros and does not round.
        sums = torch.from_numpy(local.weighted_degrees.copy())
        group.add(sums, "edges")
        topology.__dict__["weighted_degrees"] = sums.numpy()
    return replace(graph, topology=topology)
