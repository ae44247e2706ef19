"""Expected sizes of GraphSAINT's random-walk subgraphs, without walking: from degrees and chances.

A walk begins at a target and goes on to the source of a uniformly drawn incoming edge. Its place after k
steps has a known distribution over the classes of degrees, so the chance q that it meets a given vertex is
the sum over the steps, less what comes back the way it went. A subgraph of R walks holds the vertex with
1 - (1 - q)^R, and both ends of an edge with 1 - (1 - q_u)^R - (1 - q_v)^R + (1 - q_u - q_v + q_uv)^R, where
q_uv is the chance that a walk meets both: mostly because it goes along the edge. Where edges join their ends
regardless of degree, the sum over all edges is a product of two sums over their ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes

Floats = NDArray[np.float64]

# Instead of 0 where something is divided by.
_TINY = 1e-300


def expected_subgraphs(
    degrees: DegreeDistribution, *, layers: int, roots: int, walk_length: int, subgraphs: float
) -> BlockSizes:
    """Expected |V^l| and |E^l| of a mini-batch of subgraphs, and the work of sampling it.

    All blocks are the subgraphs with their inner edges, but that the last has only targets as destinations.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    layers
        Blocks of the mini-batch.
    roots, walk_length
        Walks of a subgraph, and steps of a walk.
    subgraphs
        How many are in the mini-batch, any number of at least 0.
    """
    # Targets and others of a class are told apart, since walks begin at targets.
    targets = degrees.counts if degrees.target_counts is None else degrees.target_counts
    counts = np.concatenate([targets, np.maximum(degrees.counts - targets, 0.0)])
    is_target = np.arange(len(counts)) < len(targets)
    ins, outs = np.tile(degrees.in_degrees, 2), np.tile(degrees.out_degrees, 2)
    mixing = degrees.mixing
    groups = np.tile(np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups, 2)
    shares = np.ones((1, 1)) if mixing is None else mixing.shares

    def by_group(values: Floats) -> Floats:
        return np.bincount(groups, values, len(shares)).astype(np.float64)

    leaving, entering = counts * outs, counts * ins
    # [G, G], edges from group to group; a step goes against them.
    edges = by_group(leaving)[:, None] * shares
    back = edges / np.maximum(edges.sum(0), _TINY)
    of_group = leaving / np.maximum(by_group(leaving), _TINY)[groups]

    at: Floats = np.where(is_target, counts, 0.0) / max(float(targets.sum()), _TINY)
    met, along, fresh = at / np.maximum(counts, _TINY), np.zeros(len(counts)), 1.0
    for _ in range(walk_length):
        along = along + at / np.maximum(entering, _TINY) * (ins > 0)
        staying = np.where(ins > 0, 0.0, at)
        at = of_group * (back @ by_group(at - staying))[groups]
        met = met + fresh * at / np.maximum(counts, _TINY)
        # A further step may go back to where the last one came from.
        fresh = 1.0 - degrees.reciprocity * float(at @ (1.0 / np.maximum(ins, 1.0)))
        at = at + staying
    exponents = roots * np.log1p(-np.minimum(met, 1.0 - 1e-15))
    missed = np.exp(exponents)
    source = np.exp(np.minimum(exponents + roots * degrees.reciprocity * along, 0.0))
    destination = np.exp(np.minimum(exponents + roots * along, 0.0))

    def inside(ends: Floats) -> float:
        """Edges with both ends in a subgraph, of those that enter the classes with `ends` in-edges."""
        out_share, in_sums = of_group, by_group(ends)
        part = edges * (in_sums / np.maximum(edges.sum(0), _TINY))
        per_source = by_group(out_share * missed)[:, None], by_group(out_share * source)[:, None]
        in_share = ends / np.maximum(in_sums, _TINY)[groups]
        per_end = by_group(in_share * missed), by_group(in_share * destination)
        both = 1.0 - per_source[0] - per_end[0] + np.minimum(per_source[1] * per_end[1], 1.0)
        return float((part * np.clip(both, 0.0, 1.0)).sum())

    held = counts * (1.0 - missed)
    vertices, in_targets = float(held.sum()), float(held[is_target].sum())
    inner, into_targets = inside(entering), inside(np.where(is_target, entering, 0.0))
    return BlockSizes(
        vertices=(*[subgraphs * vertices] * layers, subgraphs * in_targets),
        edges=(*[subgraphs * inner] * (layers - 1), subgraphs * into_targets),
        walk_steps=subgraphs * roots * (walk_length + 1),
        scanned_edges=subgraphs * float(held @ ins),
    )
