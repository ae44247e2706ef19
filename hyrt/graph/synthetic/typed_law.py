"""Expected degree distribution of a generated heterogeneous graph, computed from the model without sampling
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hyrt_perfmodel.sizes.relations.relation_degrees import RelationDegrees, TypedDegrees
from numpy.typing import NDArray

from hyrt.graph.synthetic.degree_law import weight_classes
from hyrt.graph.synthetic.spec import SyntheticSpec
from hyrt.graph.synthetic.typed_planted import BACK, OFFSETS, RELATIONS, SHARES

Floats = NDArray[np.float64]


def typed_degrees(spec: SyntheticSpec) -> TypedDegrees:
    """Compute the expected degrees per relation of the heterogeneous graph of `spec`.

    A sampled relation connects sources with destinations, both sampled by weight, the destination from the
    class paired with the source's class or from all vertices. Pairs that are sampled twice count once. A
    reverse relation has the same edges as its original.
    """
    counts = spec.type_counts
    numbers = {name: number for number, name in enumerate(counts)}
    kinds = {name: weight_classes(count) for name, count in counts.items()}
    relations: dict[int, RelationDegrees] = {}
    for number, share in enumerate(SHARES):
        ends = RELATIONS[number].source, RELATIONS[number].destination
        table = _expected_relation_edges(
            spec, OFFSETS[number], int(spec.edges * share), [kinds[end] for end in ends]
        )
        outs, ins = (table.sum(1 - side) / kinds[end][1] for side, end in enumerate(ends))
        end_numbers, reverse = (numbers[end] for end in ends), BACK[number]
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
    return TypedDegrees(
        counts=tuple(kinds[name][1] for name in counts),
        relations=tuple(relations[number] for number in range(len(RELATIONS))),
        target=numbers["paper"],
        num_targets=float(spec.train),
    )


def _expected_relation_edges(
    spec: SyntheticSpec, offset: int, edges: int, kinds: list[tuple[Floats, Floats]]
) -> NDArray[Any]:
    """Compute the expected number of edges between weight classes of sources and of destinations, [W, W]."""
    (first, first_counts), (second, second_counts) = kinds
    pairs = np.outer(first_counts, second_counts)
    if edges == 0:
        return np.zeros_like(pairs)
    shares = 1.0 / np.sqrt(np.arange(1, spec.classes + 1))
    shares /= shares.sum()
    # Fraction of all pairs in which the destination's class is the one paired with the source's class, per
    # class.
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
