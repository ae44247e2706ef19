"""Expected sizes of GraphSAINT's random-walk subgraphs, from degrees and probabilities."""

from __future__ import annotations

import numpy as np

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.sizes.growth import Floats

# Lower bound of divisors.
_TINY = 1e-300


def expected_subgraphs(
    degrees: DegreeDistribution, *, layers: int, roots: int, walk_length: int, subgraphs: float
) -> BlockSizes:
    """Return expected |V^l| and |E^l| of a mini-batch of subgraphs, and the sampling work.

    A walk begins at a target and continues at the source of a uniformly sampled incoming edge. Its position
    after k steps has a known distribution over the degree classes, so the probability q that it visits a
    given vertex is the sum over the steps, less the steps that return along the previous edge. A subgraph of
    R walks contains the vertex with probability 1 - (1 - q)^R, and both ends of an edge with 1 - (1 - q_u)^R
    - (1 - q_v)^R + (1 - q_u - q_v + q_uv)^R, where q_uv is the probability that a walk visits both, mostly by
    following the edge. If edges do not depend on degree, the sum over all edges is a product of two sums over
    their ends.

    All blocks are the subgraphs with their inner edges, except that the last has only targets as
    destinations.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    layers
        Blocks of the mini-batch.
    roots, walk_length
        Walks per subgraph, and steps per walk.
    subgraphs
        Subgraphs in the mini-batch, any number of at least 0.
    """
    # Targets and other vertices of a class are distinguished, because walks begin at targets.
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
    # [G, G] edges from group to group; a step follows them backward.
    edges = by_group(leaving)[:, None] * shares
    step_shares = edges / np.maximum(edges.sum(0), _TINY)
    group_share = leaving / np.maximum(by_group(leaving), _TINY)[groups]

    position: Floats = np.where(is_target, counts, 0.0) / max(float(targets.sum()), _TINY)
    visited, followed, not_returning = position / np.maximum(counts, _TINY), np.zeros(len(counts)), 1.0
    for _ in range(walk_length):
        followed = followed + position / np.maximum(entering, _TINY) * (ins > 0)
        staying = np.where(ins > 0, 0.0, position)
        position = group_share * (step_shares @ by_group(position - staying))[groups]
        visited = visited + not_returning * position / np.maximum(counts, _TINY)
        # The next step may return to the previous vertex.
        not_returning = 1.0 - degrees.reciprocity * float(position @ (1.0 / np.maximum(ins, 1.0)))
        position = position + staying
    exponents = roots * np.log1p(-np.minimum(visited, 1.0 - 1e-15))
    missed = np.exp(exponents)
    source = np.exp(np.minimum(exponents + roots * degrees.reciprocity * followed, 0.0))
    destination = np.exp(np.minimum(exponents + roots * followed, 0.0))

    def inside(ends: Floats) -> float:
        """Return the edges with both ends in a subgraph, among `ends` in-edges per class."""
        out_share, in_sums = group_share, by_group(ends)
        group_edges = edges * (in_sums / np.maximum(edges.sum(0), _TINY))
        per_source = by_group(out_share * missed)[:, None], by_group(out_share * source)[:, None]
        in_share = ends / np.maximum(in_sums, _TINY)[groups]
        per_end = by_group(in_share * missed), by_group(in_share * destination)
        both = 1.0 - per_source[0] - per_end[0] + np.minimum(per_source[1] * per_end[1], 1.0)
        return float((group_edges * np.clip(both, 0.0, 1.0)).sum())

    present = counts * (1.0 - missed)
    vertices, in_targets = float(present.sum()), float(present[is_target].sum())
    inner, into_targets = inside(entering), inside(np.where(is_target, entering, 0.0))
    return BlockSizes(
        vertices=(*[subgraphs * vertices] * layers, subgraphs * in_targets),
        edges=(*[subgraphs * inner] * (layers - 1), subgraphs * into_targets),
        walk_steps=subgraphs * roots * (walk_length + 1),
        scanned_edges=subgraphs * float(present @ ins),
    )
