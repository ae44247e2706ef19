"""Expected sizes of layer-wise samples, from degrees, layer sizes and the number of targets."""

from __future__ import annotations

import numpy as np

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, check_asked, target_chances
from hyrt_perfmodel.sizes.growth import TINY, Floats

# Largest mean for which the distribution of the number of edges is modeled; above it, only the mean is used.
_MAX_EXACT_MEAN = 30.0
_HALVINGS = 60


def expected_layerwise_sizes(
    degrees: DegreeDistribution, *, layers: int, size: int, targets: float, among_neighbors: bool
) -> BlockSizes:
    """Return expected |V^l| and |E^l| of a mini-batch, and the sampling work.

    A source is sampled with a probability that follows from its importance: over all its out-edges (FastGCN),
    or over those that end in a destination of the step (LADIES), whose number is assumed to be Poisson
    distributed. A source is read if it is sampled and one of its edges ends in a destination of the
    mini-batch.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    layers
        Blocks of the mini-batch.
    size
        Sources sampled per layer.
    targets
        Targets of the mini-batch, at least 0; capped at the number of possible targets.
    among_neighbors
        Whether sources are sampled among the neighbors of the destinations (LADIES) instead of among all
        vertices (FastGCN).

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

    def end_means(values: Floats) -> Floats:
        """Return [C] means of `values` over the ends of each class's out-edges."""
        sums, total = (np.bincount(groups, weights, len(shares)) for weights in (ends * values, ends))
        means: Floats = (shares @ (sums / np.maximum(total, TINY)))[groups]
        return means

    present = target_chances(degrees, targets)
    vertices, edges, read = [float(counts @ present)], [], 0.0
    for _ in range(layers):
        read += float(ends @ present)
        reached = np.minimum(end_means(present), 1.0)
        # Contribution of a counted out-edge to the importance of its source.
        if among_neighbors:
            weight = end_means(present / (ins + 1.0)) / np.maximum(reached, TINY) / (ins + 1.0)
            number, chance = _poisson(outs * reached)
        else:
            weight = end_means(1.0 / (ins + 1.0)) / (ins + 1.0)
            number, chance = outs[:, None], np.ones((len(counts), 1))
        sampled = _sampling_chances(number * weight[:, None], counts[:, None] * chance, size)
        if among_neighbors:
            chosen = (chance * sampled).sum(1)
            edges.append(float(counts @ (chance * sampled * number).sum(1)))
        else:
            chosen = sampled[:, 0] * (1.0 - np.exp(outs * np.log1p(-np.minimum(reached, 1.0 - 1e-15))))
            edges.append(float(counts @ (sampled[:, 0] * outs * reached)))
        present = 1.0 - (1.0 - present) * (1.0 - chosen)
        vertices.append(float(counts @ present))
    return BlockSizes(
        vertices=tuple(vertices[::-1]),
        edges=tuple(edges[::-1]),
        walk_steps=sum(edges),
        scanned_edges=read * (3 if among_neighbors else 2),
    )


def _poisson(means: Floats) -> tuple[Floats, Floats]:
    """Return [C, K] numbers and their probabilities, for Poisson distributions of the given means."""
    max_number = int(_MAX_EXACT_MEAN + 8 * np.sqrt(_MAX_EXACT_MEAN))
    number = np.broadcast_to(np.arange(max_number + 1.0), (len(means), max_number + 1)).copy()
    small = np.minimum(means, _MAX_EXACT_MEAN)[:, None]
    factors = np.concatenate([np.exp(-small), small / np.arange(1.0, max_number + 1.0)[None, :]], axis=1)
    chance = np.cumprod(factors, axis=1)
    is_large = means > _MAX_EXACT_MEAN
    number[is_large], chance[is_large] = means[is_large, None], 0.0
    chance[is_large, 0] = 1.0
    return number, chance


def _sampling_chances(importance: Floats, counts: Floats, size: float) -> Floats:
    """Return probabilities proportional to importance, at most 1, whose weighted sum over `counts` is `size`.

    If `size` exceeds the number of candidates, all probabilities are 1.
    """
    is_candidate = importance > 0
    if float(counts[is_candidate].sum()) <= size:
        return is_candidate.astype(np.float64)
    low, high = 0.0, 1.0 / float(importance[is_candidate].min())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = float((counts * np.minimum(1.0, middle * importance)).sum()) > size
        low, high = (low, middle) if over else (middle, high)
    return np.minimum(1.0, high * importance)
