"""Expected sizes of bounded subgraphs around targets (ShaDow), without sampling."""

from __future__ import annotations

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, check_asked, target_chances
from hyrt_perfmodel.sizes.growth import Growth


def expected_bounded_subgraphs(
    degrees: DegreeDistribution, *, layers: int, hops: int, fanout: int, targets: float
) -> BlockSizes:
    """Return expected |V^l| and |E^l| of a mini-batch, and the sampling work.

    Each subgraph grows from its own target like a mini-batch with one target. Of the edges between its
    vertices, the edges by which it grew are known, and their reverses if they exist; the others are there by
    chance, since edges are assumed to depend only on degrees.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    layers
        Blocks of the mini-batch.
    hops, fanout
        Depth of a subgraph, and neighbors that each of its vertices adds.
    targets
        Targets of the mini-batch, any number of at least 0.

    Raises
    ------
    ValueError
        If a number is negative.
    """
    check_asked([fanout], targets)
    growth = Growth(degrees, target_chances(degrees, 1.0))
    for hop in range(hops):
        growth.grow([fanout] * (hop + 1))
    counts, chances = degrees.counts, growth.chances
    members = float(counts @ chances)
    into, out_of = (
        float(counts @ (chances * class_degrees))
        for class_degrees in (degrees.in_degrees, degrees.out_degrees)
    )
    grown = max(members - min(1.0, degrees.num_targets), 0.0) * (1.0 + degrees.reciprocity)
    by_chance = max(into - grown, 0.0) * max(out_of - grown, 0.0) / max(degrees.num_edges, 1)
    inner = min(grown + by_chance, into)
    # Edges into the target itself: those by which its neighbors were added, and others by chance.
    chosen = target_chances(degrees, 1.0)
    sampled = degrees.in_degrees.clip(max=fanout)
    others = (degrees.in_degrees - sampled) * min(out_of / max(degrees.num_edges, 1), 1.0)
    target_edges = float(counts @ (chosen * (sampled + others)))
    return BlockSizes(
        vertices=(*[targets * members] * layers, targets),
        edges=(*[targets * inner] * (layers - 1), targets * min(target_edges, inner)),
        walk_steps=targets * members,
        scanned_edges=2 * targets * into,
    )
