"""Expected degree distributions of generated graphs, computed from the model without sampling a graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hyrt_perfmodel.degrees import DegreeDistribution, DegreeMixing
from hyrt_perfmodel.hetero_sizes import HeteroDegrees, RelationDegrees
from numpy.typing import NDArray

from hyrt.graph.synthetic.planted_partition import (
    CLASS_OFFSETS,
    RELATION_SHARES,
    RELATIONS,
    REVERSE_RELATIONS,
)
from hyrt.graph.synthetic.spec import SyntheticSpec

Floats = NDArray[np.float64]

_WEIGHTS = 80
# Three-point Gauss-Hermite quadrature over the degrees of a weight class, which scatter around their mean.
_SCATTER = (-math.sqrt(3.0), 0.0, math.sqrt(3.0))
_SCATTER_SHARES = (1 / 6, 2 / 3, 1 / 6)


def compute_degree_distribution(spec: SyntheticSpec) -> DegreeDistribution:
    """Compute the expected degree distribution and degree mixing of the planted partition of `spec`.

    The weight of a vertex is min(x^(-3/4), sqrt(V)) for uniform x. The first endpoint of an edge is sampled
    by weight, and the second by weight from the class of the first or from all vertices. Pairs that are
    sampled twice count once, so the expected number of edges between two vertices is 1 - exp(-draws). Half of
    a vertex's edges are fixed by its weight; the other half are Poisson distributed, which determines the
    variance of the degrees.
    """
    weights, counts = build_weight_classes(spec.vertices)
    table = _edges_between(spec, weights, counts)
    degrees = table.sum(1) / counts
    scatter = np.sqrt(degrees / 2)
    all_degrees = np.concatenate([np.maximum(degrees + deviation * scatter, 0.0) for deviation in _SCATTER])
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


def build_weight_classes(num_vertices: int) -> tuple[Floats, Floats]:
    """Return the mean weight and the number of vertices of each weight class [W]. Classes are finer for large
    weights.
    """
    cap = float(max(4, math.isqrt(num_vertices)))
    # Boundaries of x between 0 and 1. All weights in the heaviest class are at the cap.
    edges = np.append(0.0, np.geomspace(cap ** (-4 / 3), 1.0, _WEIGHTS))
    shares = np.diff(edges)
    weights = 4.0 * np.diff(edges**0.25) / shares
    weights[0] = cap
    return weights, shares * num_vertices


def _edges_between(spec: SyntheticSpec, weights: Floats, counts: Floats) -> NDArray[Any]:
    """Compute the expected number of stored edges between weight classes [W, W]; the sum is `spec.edges`."""
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
        total_edges = float((table * pairs).sum())
        if abs(total_edges / spec.edges - 1) < 1e-6:
            break
        draws *= spec.edges / total_edges
    return table * pairs * (spec.edges / total_edges)


def compute_hetero_degrees(spec: SyntheticSpec) -> HeteroDegrees:
    """Compute the expected degrees per relation of the heterogeneous graph of `spec`.

    In a sampled relation, sources and destinations are sampled by weight, destinations either from the class
    that is paired with the source's class, or from all vertices. Pairs that are sampled twice count once. A
    reverse relation has the same edges as its original.
    """
    counts = spec.type_counts
    numbers = {name: number for number, name in enumerate(counts)}
    kinds = {name: build_weight_classes(count) for name, count in counts.items()}
    relations: dict[int, RelationDegrees] = {}
    for number, share in enumerate(RELATION_SHARES):
        ends = RELATIONS[number].source, RELATIONS[number].destination
        table = _expected_relation_edges(
            spec, CLASS_OFFSETS[number], int(spec.edges * share), [kinds[end] for end in ends]
        )
        outs, ins = (table.sum(1 - side) / kinds[end][1] for side, end in enumerate(ends))
        end_numbers, reverse = (numbers[end] for end in ends), REVERSE_RELATIONS[number]
        source, destination = end_numbers
        relations[number] = RelationDegrees(
            source=source, destination=destination, in_degrees=ins, out_degrees=outs, reverse=reverse
        )
        if reverse is not None:
            relations[reverse] = RelationDegrees(
                source=destination,
                destination=source,
                in_degrees=outs,
                out_degrees=ins,
                reverse=number,
            )
    return HeteroDegrees(
        counts=tuple(kinds[name][1] for name in counts),
        relations=tuple(relations[number] for number in range(len(RELATIONS))),
        target=numbers["paper"],
        num_targets=float(spec.train),
    )


def _expected_relation_edges(
    spec: SyntheticSpec, offset: int, edges: int, kinds: list[tuple[Floats, Floats]]
) -> NDArray[Any]:
    """Compute the expected number of edges between weight classes of sources and destinations, [W, W]."""
    (first, first_counts), (second, second_counts) = kinds
    pairs = np.outer(first_counts, second_counts)
    if edges == 0:
        return np.zeros_like(pairs)
    shares = 1.0 / np.sqrt(np.arange(1, spec.classes + 1))
    shares /= shares.sum()
    # For each destination class, the fraction of all vertex pairs that join it to its matching source class.
    joined = np.roll(shares, offset) * shares
    odds = np.outer(first, second) / (float(first @ first_counts) * float(second @ second_counts))
    draws = float(edges)
    for _ in range(30):
        table = -(1.0 - joined.sum()) * np.expm1(-draws * (1 - spec.homophily) * odds)
        for part, share in zip(joined.tolist(), shares.tolist(), strict=True):
            table -= part * np.expm1(-draws * ((1 - spec.homophily) + spec.homophily / share) * odds)
        total = float((table * pairs).sum())
        if abs(total / edges - 1) < 1e-6:
            break
        draws *= edges / total
    expected: NDArray[Any] = table * pairs * (edges / total)
    return expected
