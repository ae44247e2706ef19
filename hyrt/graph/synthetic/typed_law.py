"""The degrees a generated typed graph is going to have, from the law it is drawn by, without drawing it."""

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
    """Degrees by relation of the typed graph of `spec`, in expectation.

    A drawn relation joins its sources by weight with destinations by weight, of the class that goes with the
    source's or of all. Pairs drawn twice count once. The relations that go back have the same edges.
    """
    counts = spec.type_counts
    numbers = {name: number for number, name in enumerate(counts)}
    kinds = {name: weight_classes(count) for name, count in counts.items()}
    found: dict[int, RelationDegrees] = {}
    for number, share in enumerate(SHARES):
        ends = RELATIONS[number].source, RELATIONS[number].destination
        table = _edges_between(spec, OFFSETS[number], int(spec.edges * share), [kinds[end] for end in ends])
        outs, ins = (table.sum(1 - side) / kinds[end][1] for side, end in enumerate(ends))
        there, back = (numbers[end] for end in ends), BACK[number]
        source, destination = there
        found[number] = RelationDegrees(
            source=source, destination=destination, in_degrees=ins, out_degrees=outs, reverse=back
        )
        if back is not None:
            found[back] = RelationDegrees(
                source=destination,
                destination=source,
                in_degrees=outs,
                out_degrees=ins,
                reverse=number,
            )
    return TypedDegrees(
        counts=tuple(kinds[name][1] for name in counts),
        relations=tuple(found[number] for number in range(len(RELATIONS))),
        target=numbers["paper"],
        num_targets=float(spec.train),
    )


def _edges_between(
    spec: SyntheticSpec, offset: int, edges: int, kinds: list[tuple[Floats, Floats]]
) -> NDArray[Any]:
    """[W, W] expected edges between classes of weights of the sources and of the destinations."""
    (first, first_counts), (second, second_counts) = kinds
    pairs = np.outer(first_counts, second_counts)
    if edges == 0:
        return np.zeros_like(pairs)
    shares = 1.0 / np.sqrt(np.arange(1, spec.classes + 1))
    shares /= shares.sum()
    # The part of all pairs of which each class of destinations is the one that goes with the source's.
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
