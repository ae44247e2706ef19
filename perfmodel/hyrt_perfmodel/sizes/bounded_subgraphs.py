"""Expected sizes of bounded subgraphs around targets (ShaDow), without sampling.

Each grows from its own target as a mini-batch of one target does. Of the edges between its vertices, those
are known by which it grew, and their reverses where they exist; the others are there by chance, as edges join
their ends regardless of anything but degrees.
"""

from __future__ import annotations

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, check_asked, target_chances
from hyrt_perfmodel.sizes.growth import Growth


def expected_bounded_subgraphs(
    degrees: DegreeDistribution, *, layers: int, hops: int, fanout: int, targets: float
) -> BlockSizes:
    """Expected |V^l| and |E^l| of a mini-batch, and what sampling it looks at.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    layers
        Blocks of the mini-batch.
    hops, fanout
        How far a subgraph reaches, and how many neighbours each of its vertices adds.
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
    into, out_of = (float(counts @ (chances * each)) for each in (degrees.in_degrees, degrees.out_degrees))
    grown = max(members - min(1.0, degrees.num_targets), 0.0) * (1.0 + degrees.reciprocity)
    by_chance = max(into - grown, 0.0) * max(out_of - grown, 0.0) / max(degrees.num_edges, 1)
    inner = min(grown + by_chance, into)
    # Of the target itself: the edges by which its neighbours came, and others by chance.
    chosen = target_chances(degrees, 1.0)
    drawn = degrees.in_degrees.clip(max=fanout)
    others = (degrees.in_degrees - drawn) * min(out_of / max(degrees.num_edges, 1), 1.0)
    of_target = float(counts @ (chosen * (drawn + others)))
    return BlockSizes(
        vertices=(*[targets * members] * layers, targets),
        edges=(*[targets * inner] * (layers - 1), targets * min(of_target, inner)),
        walk_steps=targets * members,
        scanned_edges=2 * targets * into,
    )
