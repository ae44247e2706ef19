"""Expected sizes of layer-wise samples, without sampling: from degrees, layer sizes and the number of
targets.

A source is drawn with a chance that follows from its importance: of all its out-edges (FastGCN), or of those
that end in a destination of the step (LADIES), whose number is taken to be Poisson distributed. It is read if
it is drawn and an edge of it ends in a destination of the mini-batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, check_asked, target_chances
from hyrt_perfmodel.sizes.growth import TINY

Floats = NDArray[np.float64]

# Up to this mean, numbers of edges are told apart; beyond, they are taken for their mean.
_MANY = 30.0
_HALVINGS = 60


def expected_layerwise_sizes(
    degrees: DegreeDistribution, *, layers: int, size: int, targets: float, among_neighbors: bool
) -> BlockSizes:
    """Expected |V^l| and |E^l| of a mini-batch, and what drawing it looks at.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    layers
        Blocks of the mini-batch.
    size
        Sources that are drawn for a layer.
    targets
        Targets of the mini-batch, any number of at least 0; more than the graph has count as all of them.
    among_neighbors
        Whether sources are drawn among the neighbours of the destinations (LADIES), else among all vertices
        (FastGCN).

    Raises
    ------
    ValueError
        If `targets` is negative.
    """
    check_asked([size], targets)
    counts, ins, outs = degrees.counts, degrees.in_degrees, degrees.out_degrees
    mixing = degrees.mixing
    groups = np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups
    shares = np.ones((1, 1)) if mixing is None else mixing.shares
    ends = counts * ins

    def of_ends(values: Floats) -> Floats:
        """[C] the mean of `values` over the ends of each class's out-edges."""
        sums, whole = (np.bincount(groups, each, len(shares)) for each in (ends * values, ends))
        means: Floats = (shares @ (sums / np.maximum(whole, TINY)))[groups]
        return means

    present = target_chances(degrees, targets)
    vertices, edges, read = [float(counts @ present)], [], 0.0
    for _ in range(layers):
        read += float(ends @ present)
        reached = np.minimum(of_ends(present), 1.0)
        # What an out-edge that counts adds to the importance of its source.
        if among_neighbors:
            weight = of_ends(present / (ins + 1.0)) / np.maximum(reached, TINY) / (ins + 1.0)
            number, chance = _poisson(outs * reached)
        else:
            weight = of_ends(1.0 / (ins + 1.0)) / (ins + 1.0)
            number, chance = outs[:, None], np.ones((len(counts), 1))
        drawn = _drawn(number * weight[:, None], counts[:, None] * chance, size)
        if among_neighbors:
            chosen = (chance * drawn).sum(1)
            edges.append(float(counts @ (chance * drawn * number).sum(1)))
        else:
            chosen = drawn[:, 0] * (1.0 - np.exp(outs * np.log1p(-np.minimum(reached, 1.0 - 1e-15))))
            edges.append(float(counts @ (drawn[:, 0] * outs * reached)))
        present = 1.0 - (1.0 - present) * (1.0 - chosen)
        vertices.append(float(counts @ present))
    return BlockSizes(
        vertices=tuple(vertices[::-1]),
        edges=tuple(edges[::-1]),
        walk_steps=sum(edges),
        scanned_edges=read * (3 if among_neighbors else 2),
    )


def _poisson(means: Floats) -> tuple[Floats, Floats]:
    """[C, K] numbers and their chances, for Poisson distributions of the given means."""
    most = int(_MANY + 8 * np.sqrt(_MANY))
    number = np.broadcast_to(np.arange(most + 1.0), (len(means), most + 1)).copy()
    small = np.minimum(means, _MANY)[:, None]
    factors = np.concatenate([np.exp(-small), small / np.arange(1.0, most + 1.0)[None, :]], axis=1)
    chance = np.cumprod(factors, axis=1)
    many = means > _MANY
    number[many], chance[many] = means[many, None], 0.0
    chance[many, 0] = 1.0
    return number, chance


def _drawn(importance: Floats, counts: Floats, size: float) -> Floats:
    """Chances in proportion to importance, at most 1, that add up to `size` over the counts; all 1 if they
    must.
    """
    some = importance > 0
    if float(counts[some].sum()) <= size:
        return some.astype(np.float64)
    low, high = 0.0, 1.0 / float(importance[some].min())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = float((counts * np.minimum(1.0, middle * importance)).sum()) > size
        low, high = (low, middle) if over else (middle, high)
    return np.minimum(1.0, high * importance)
