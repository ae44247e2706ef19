"""The degrees a generated graph is going to have, from the law it is drawn by, without drawing it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hyrt_perfmodel.sizes.degrees import DegreeDistribution, DegreeMixing
from numpy.typing import NDArray

from hyrt.graph.synthetic.spec import SyntheticSpec

Floats = NDArray[np.float64]

_WEIGHTS = 80
# Gauss-Hermite quadrature with three points: a class's degrees scatter around their mean.
_SCATTER = (-math.sqrt(3.0), 0.0, math.sqrt(3.0))
_SCATTER_SHARES = (1 / 6, 2 / 3, 1 / 6)


def synthetic_degrees(spec: SyntheticSpec) -> DegreeDistribution:
    """Degrees and mixing of the planted partition of `spec`, in expectation.

    A vertex has the weight min(x^(-3/4), sqrt(V)) for uniform x. An edge draws its first end by weight, the
    second by weight among the first's class or among all. Pairs drawn twice count once, so the expected edges
    between two vertices are 1 - exp(-draws). Half of a vertex's edges are given by its weight, the other half
    are Poisson: that is how degrees scatter around the expected.

    Returns
    -------
    The distribution; its `source` is `assumed: the generator's law`.
    """
    weights, counts = weight_classes(spec.vertices)
    table = _edges_between(spec, weights, counts)
    degrees = table.sum(1) / counts
    scatter = np.sqrt(degrees / 2)
    all_degrees = np.concatenate([np.maximum(degrees + at * scatter, 0.0) for at in _SCATTER])
    all_counts = np.concatenate([share * counts for share in _SCATTER_SHARES])
    totals = table.sum(1, keepdims=True)
    return DegreeDistribution(
        counts=all_counts,
        in_degrees=all_degrees,
        out_degrees=all_degrees,
        num_vertices=spec.vertices,
        num_edges=spec.edges,
        source="assumed: the generator's law",
        target_counts=all_counts * (spec.train / spec.vertices) if spec.train else None,
        mixing=DegreeMixing(
            groups=np.tile(np.arange(len(counts)), len(_SCATTER)),
            shares=np.where(totals > 0, table / np.maximum(totals, 1e-300), 1 / len(counts)),
        ),
    )


def weight_classes(num_vertices: int) -> tuple[Floats, Floats]:
    """[W] mean weight and number of vertices of classes that are finer towards the heavy ones."""
    cap = float(max(4, math.isqrt(num_vertices)))
    # x from 0 to 1: the heaviest class has the weights at the cap.
    edges = np.append(0.0, np.geomspace(cap ** (-4 / 3), 1.0, _WEIGHTS))
    shares = np.diff(edges)
    weights = 4.0 * np.diff(edges**0.25) / shares
    weights[0] = cap
    return weights, shares * num_vertices


def _edges_between(spec: SyntheticSpec, weights: Floats, counts: Floats) -> NDArray[Any]:
    """[W, W] expected stored edges between classes of weights, `spec.edges` in all."""
    if spec.edges == 0:
        return np.zeros((len(weights), len(weights)))
    shares = 1.0 / np.sqrt(np.arange(1, spec.classes + 1))
    shares /= shares.sum()
    total = float(weights @ counts)
    pairs = np.outer(counts, counts)
    odds = 2.0 * np.outer(weights, weights) / total**2
    apart = float(1.0 - (shares**2).sum())
    draws = spec.edges / 2
    for _ in range(30):
        table = apart * -np.expm1(-draws * (1 - spec.homophily) * odds)
        for share in shares.tolist():
            table -= share**2 * np.expm1(-draws * ((1 - spec.homophily) + spec.homophily / share) * odds)
        found = float((table * pairs).sum())
        if abs(found / spec.edges - 1) < 1e-6:
            break
        draws *= spec.edges / found
    return table * pairs * (spec.edges / found)
