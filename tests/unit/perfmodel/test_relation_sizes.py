"""Sizes of typed mini-batches by relation: expected from degrees, beside random graphs that are sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.hetero_sizes import (
    HeteroDegrees,
    RelationDegrees,
    assumed_relations,
    expected_relation_sizes,
)
from hyrt_perfmodel.model_workload import RelationSizes

PAPERS, AUTHORS = 3000, 1000
EDGES = (9000, 6000, 6000)
"""Of papers that cite papers, of authors that write papers, and these the other way round."""


def random_ends() -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(3)
    cites = draw.integers(0, PAPERS, (2, EDGES[0]))
    writes = np.stack([draw.integers(0, AUTHORS, EDGES[1]), draw.integers(0, PAPERS, EDGES[1])])
    return [tuple(cites), tuple(writes), tuple(writes[::-1])]


def sampled(fanouts: list[list[int]], targets: int) -> RelationSizes:
    """One mini-batch, drawn vertex by vertex in the plainest way; papers have type 0, and authors type 1."""
    draw, ends = np.random.default_rng(8), random_ends()
    kinds = ((0, 0), (1, 0), (0, 1))
    into: list[dict[int, list[int]]] = []
    for sources, targets_of in ends:
        lists: dict[int, list[int]] = {}
        for u, v in zip(sources.tolist(), targets_of.tolist(), strict=True):
            lists.setdefault(v, []).append(u)
        into.append(lists)
    there = [set(draw.choice(PAPERS, targets, replace=False).tolist()), set()]
    vertices, runs, edges = [tuple(float(len(each)) for each in there)], [], []
    for of_layer in fanouts:
        of_runs, of_edges, new = [], [], [set(each) for each in there]
        for relation, (source, destination) in enumerate(kinds):
            lists, fanout = into[relation], of_layer[relation]
            count = drawn = 0
            for v in there[destination]:
                from_here = lists.get(v, [])
                if not from_here or not fanout:
                    continue
                k = len(from_here) if fanout < 0 else min(fanout, len(from_here))
                picks = draw.choice(len(from_here), k, replace=False)
                new[source].update(from_here[p] for p in picks)
                count, drawn = count + 1, drawn + k
            of_runs.append(float(count))
            of_edges.append(float(drawn))
        there = new
        vertices.append(tuple(float(len(each)) for each in there))
        runs.append(tuple(of_runs))
        edges.append(tuple(of_edges))
    return RelationSizes(vertices=tuple(vertices[::-1]), segments=tuple(runs[::-1]), edges=tuple(edges[::-1]))


def degrees() -> HeteroDegrees:
    one = np.ones(1)
    between = ((0, 0, EDGES[0], None), (1, 0, EDGES[1], 2), (0, 1, EDGES[2], 1))
    counts = (PAPERS, AUTHORS)
    return HeteroDegrees(
        counts=(one * PAPERS, one * AUTHORS),
        relations=tuple(
            RelationDegrees(
                source=source,
                destination=end,
                in_degrees=one * edges / counts[end],
                out_degrees=one * edges / counts[source],
                reverse=back,
            )
            for source, end, edges, back in between
        ),
        target=0,
        num_targets=PAPERS,
    )


@pytest.mark.parametrize(
    ("fanouts", "targets"),
    [
        ([[2, 2, 2], [2, 2, 2]], 100),
        ([[5, 1, 3], [2, 3, 1], [2, 2, 2]], 40),
        ([[-1, -1, -1], [-1, 0, -1]], 300),
        ([[1, 1, 1]], 3000),
    ],
)
def test_expected_sizes_are_those_of_random_graphs(fanouts: list[list[int]], targets: int) -> None:
    found, wanted = expected_relation_sizes(degrees(), fanouts, targets), sampled(fanouts, targets)
    assert found.layers == len(fanouts)
    for one, other in zip(found.row, wanted.row, strict=True):
        # The counts of one draw scatter.
        assert one == pytest.approx(other, rel=0.06, abs=3 * other**0.5 + 1)


def test_all_targets_with_all_neighbours_reach_whatever_has_an_edge() -> None:
    found = expected_relation_sizes(degrees(), [[-1] * 3], 10**9)
    assert found.vertices[-1] == (PAPERS, 0.0)
    assert found.edges[0][:2] == pytest.approx(EDGES[:2])
    assert found.edges[0][2] == 0
    authors = AUTHORS * -np.expm1(-EDGES[1] / AUTHORS)
    assert found.vertices[0] == (PAPERS, pytest.approx(authors))


def alike(count: int, edges: float) -> HeteroDegrees:
    """Vertices of one type, with so many edges each, of one relation."""
    means = np.full(1, edges)
    relation = RelationDegrees(source=0, destination=0, in_degrees=means, out_degrees=means)
    counts = (np.full(1, float(count)),)
    return HeteroDegrees(counts=counts, relations=(relation,), target=0, num_targets=count)


def test_a_target_that_draws_one_edge_reaches_one_vertex_more_unless_it_has_none() -> None:
    """Of ten vertices with two edges in the mean: by hand. The other end is the target itself for a tenth."""
    found = expected_relation_sizes(alike(10, 2.0), [[1]], 1)
    has_edges = 1 - np.exp(-2.0)
    assert found.edges[0] == pytest.approx((has_edges,))
    assert found.segments[0] == pytest.approx((has_edges,))
    assert found.vertices[0] == pytest.approx((1 + 0.9 * has_edges,), rel=5e-3)


@pytest.mark.parametrize("fanout", [20, 60, 90])
def test_degrees_of_vertices_with_many_edges_scatter_too(fanout: int) -> None:
    """Three points stand for all degrees there: beside a million that are drawn."""
    drawn = np.random.default_rng(4).poisson(60.0, 10**6)
    found = expected_relation_sizes(alike(1000, 60.0), [[fanout]], 1000)
    assert found.edges[0][0] == pytest.approx(1000 * np.minimum(drawn, fanout).mean(), rel=0.015)


def test_assumed_degrees_have_the_published_edges() -> None:
    found = assumed_relations([50_000, 400], [(0, 0, 300_000), (1, 0, 10_000)], target=0, num_targets=1000)
    assert found.num_edges == pytest.approx([300_000, 10_000], rel=1e-6)
    assert found.num_vertices == pytest.approx([50_000, 400])
    for each in found.relations:
        assert float(found.counts[each.source] @ each.out_degrees) == pytest.approx(
            float(found.counts[each.destination] @ each.in_degrees), rel=1e-6
        )


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_rows_of_numbers_stand_for_sizes(layers: int, types: int, relations: int, random) -> None:
    def table(rows: int, columns: int) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(random.random() for _ in range(columns)) for _ in range(rows))

    sizes = RelationSizes(
        vertices=table(layers + 1, types), segments=table(layers, relations), edges=table(layers, relations)
    )
    assert RelationSizes.from_row(sizes.row, layers, types) == sizes


def test_damaged_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one more in vertices"):
        RelationSizes(vertices=((1.0,),), segments=((1.0,),), edges=((1.0,),))
    with pytest.raises(ValueError, match="in_degrees must contain only finite numbers"):
        RelationDegrees(source=0, destination=0, in_degrees=np.array([-1.0]), out_degrees=np.ones(1))
    one = RelationDegrees(source=0, destination=0, in_degrees=np.ones(2), out_degrees=np.ones(1))
    with pytest.raises(ValueError, match="2 degrees for 1 classes"):
        HeteroDegrees(counts=(np.ones(1),), relations=(one,), target=0, num_targets=1.0)
