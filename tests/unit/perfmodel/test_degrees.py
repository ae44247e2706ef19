"""Degree distributions: counted by class, by an assumed law, and from a graph, against plain counting."""

from __future__ import annotations

import numpy as np
import pytest
from counted_degrees import degree_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.degrees import DegreeClasses, DegreeDistribution, DegreeMixing
from unit.sampling.small_graphs import graph_of, graphs

from hyrt.graph.synthetic import generate, parse_spec
from hyrt.graph.synthetic.degree_distribution import compute_degree_distribution


@given(st.lists(st.integers(0, 100_000), max_size=300), st.sampled_from([16, 40, 2000]))
@settings(deadline=None, max_examples=60)
def test_classes_keep_vertices_and_edges(degrees: list[int], most: int) -> None:
    ins = np.array(degrees, np.int64)
    found = DegreeDistribution.from_classes(DegreeClasses.from_degrees(ins, max_classes=most))
    assert found.num_classes <= max(most, 1)
    assert found.counts.sum() == len(ins) == found.num_vertices
    assert found.counts @ found.in_degrees == pytest.approx(ins.sum())
    assert found.num_edges == ins.sum()
    assert found.reciprocity == 1


def test_few_degrees_are_told_apart_exactly() -> None:
    ins, outs = np.array([0, 3, 3, 7, 3]), np.array([4, 4, 4, 0, 4])
    found = DegreeDistribution.from_classes(DegreeClasses.from_degrees(ins, outs), targets=np.array([1, 3]))
    assert found.num_classes == 3
    assert found.target_counts is not None
    rows = zip(found.in_degrees, found.out_degrees, found.counts, found.target_counts, strict=True)
    assert sorted(map(tuple, rows)) == [(0, 4, 1, 0), (3, 4, 3, 1), (7, 0, 1, 1)]
    assert found.reciprocity == 0
    assert found.num_targets == 2


def test_vertices_of_a_class_have_close_degrees() -> None:
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 1 << 20, 20_000)
    classes = DegreeClasses.from_degrees(degrees, max_classes=300)
    assert 100 < classes.num_classes <= 300
    low = np.full(classes.num_classes, np.inf)
    np.minimum.at(low, classes.class_of_vertex, degrees)
    assert (degrees <= low[classes.class_of_vertex] * 1.2 + 1).all()


@pytest.mark.parametrize("reciprocity", [0.0, 1.0])
def test_an_assumed_law_has_the_size_it_was_given(reciprocity: float) -> None:
    found = DegreeDistribution.assumed(2_449_029, 123_718_280, reciprocity=reciprocity, num_targets=196_615)
    assert found.counts.sum() == pytest.approx(2_449_029)
    assert found.counts @ found.in_degrees == pytest.approx(123_718_280)
    assert found.counts @ found.out_degrees == pytest.approx(123_718_280)
    assert found.num_targets == pytest.approx(196_615)
    assert found.source == "assumed: log-normal degrees, sigma 1.2"


def test_an_assumed_law_is_log_normal() -> None:
    found = DegreeDistribution.assumed(10**6, 5 * 10**7, sigma=1.0)
    draws = np.random.default_rng(0).lognormal(np.log(50) - 0.5, 1.0, 10**6)
    for fanout in (5, 10, 25, 100):
        expected = np.minimum(draws, fanout).mean()
        assert found.counts @ np.minimum(found.in_degrees, fanout) / 1e6 == pytest.approx(expected, rel=0.01)


def test_no_edges() -> None:
    found = DegreeDistribution.assumed(10, 0)
    assert found.counts @ found.in_degrees == 0


@given(graphs(max_vertices=60))
@settings(deadline=None, max_examples=60)
def test_what_is_counted_of_a_graph(graph) -> None:
    found = degree_distribution(graph)
    ins = np.diff(graph.topology.indptr)
    rows = np.repeat(np.arange(graph.num_vertices), ins)
    loops = int((rows == graph.topology.indices).sum())
    assert found.num_edges == graph.num_edges
    assert found.counts @ found.in_degrees == pytest.approx(ins.sum())
    assert found.counts @ found.out_degrees == pytest.approx(ins.sum() - loops)
    if graph.num_edges and found.mixing is not None:
        between = found.counts * found.out_degrees
        groups = np.bincount(found.mixing.groups, between, len(found.mixing.shares))
        into = groups @ found.mixing.shares
        expected = np.bincount(
            found.mixing.groups, found.counts * found.in_degrees, len(found.mixing.shares)
        ).sum()
        assert into.sum() == pytest.approx(expected - loops)


def test_mixing_of_a_star() -> None:
    graph = graph_of([[1, 2, 3, 4], [0], [0], [0], [0]])
    found = degree_distribution(graph)
    assert found.mixing is not None
    hub = found.mixing.groups[int(np.argmax(found.in_degrees))]
    leaf = found.mixing.groups[int(np.argmin(found.in_degrees))]
    assert found.mixing.shares[hub, leaf] == 1
    assert found.mixing.shares[leaf, hub] == 1


def test_a_directed_cycle_has_no_reverse_edges() -> None:
    found = degree_distribution(graph_of([[(v - 1) % 12] for v in range(12)]))
    assert found.reciprocity == 0
    assert found.overlap is None


def test_the_law_of_the_generator() -> None:
    spec = parse_spec("synthetic:papers-s,vertices=30k")
    data = generate(spec)
    degrees = np.diff(data.arrays["indptr"])
    law = compute_degree_distribution(spec)
    assert law.num_targets == spec.train
    assert law.counts @ law.in_degrees == pytest.approx(spec.edges)
    for fanout in (3, 10, 25, 100):
        expected = np.minimum(degrees, fanout).mean()
        assert law.counts @ np.minimum(law.in_degrees, fanout) / spec.vertices == pytest.approx(
            expected, rel=0.03
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": np.array([-1.0])}, "finite numbers of at least 0"),
        ({"in_degrees": np.array([1.0, 2.0])}, "one number per class"),
        ({"out_degrees": np.array([np.inf])}, "finite numbers of at least 0"),
        ({"reciprocity": 2.0}, "reciprocity must be a number from 0 to 1"),
        (
            {"mixing": DegreeMixing(groups=np.zeros(2, np.int64), shares=np.ones((1, 1)))},
            "groups for 2 classes, expected one for each of the 1",
        ),
    ],
)
def test_arrays_that_do_not_belong_together(change: dict, said: str) -> None:
    fine = {
        "counts": np.array([3.0]),
        "in_degrees": np.array([2.0]),
        "out_degrees": np.array([2.0]),
        "num_vertices": 3,
        "num_edges": 6,
        "source": "counted",
    }
    with pytest.raises(ValueError, match=said):
        DegreeDistribution(**{**fine, **change})


@pytest.mark.parametrize(
    ("group", "shares", "said"),
    [
        (0, np.ones((1, 2)), "square"),
        (0, np.full((1, 1), 0.5), "add up"),
        (2, np.eye(2), "must be numbers from 0 to 1"),
    ],
)
def test_a_mixing_table_that_is_none(group: int, shares: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DegreeMixing(groups=np.array([group]), shares=shares)


def test_targets_have_no_more_edges_than_all() -> None:
    with pytest.raises(ValueError, match="target_shares must have the shape of shares, with no larger"):
        DegreeMixing(groups=np.array([0]), shares=np.ones((1, 1)), target_shares=np.full((1, 1), 1.5))
