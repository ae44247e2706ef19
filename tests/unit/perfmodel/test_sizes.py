"""Expected sizes of mini-batches against sampling, and against cases worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from counted_degrees import degree_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.degrees import DegreeClasses, DegreeDistribution
from hyrt_perfmodel.expected_sizes import BlockSizes, expected_sizes
from unit.sampling.small_graphs import graph_of, graphs, random_graph

from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler


def sampled(graph: Graph, fanouts: list[int], targets: int, batches: int = 60) -> BlockSizes:
    """Mean sizes over mini-batches of the product's own sampler, each from its own seed."""
    train = graph.split("train")
    rows = []
    with Workers(1, "test.sample") as workers:
        for seed in range(batches):
            sampler = NeighborSampler(graph, train, fanouts, targets, seed)
            batch = sampler.sample(0, sampler.units(0), workers, in_place=False)
            edges = [block.num_edges for block in batch.blocks]
            rows.append([batch.blocks[0].num_src, *(block.num_dst for block in batch.blocks), *edges])
            batch.release()
    means = np.mean(rows, axis=0)
    return BlockSizes(vertices=tuple(means[: len(fanouts) + 1]), edges=tuple(means[len(fanouts) + 1 :]))


def star(leaves: int) -> Graph:
    return graph_of([list(range(1, leaves + 1)), *([0] for _ in range(leaves))])


def complete(size: int) -> Graph:
    return graph_of([[u for u in range(size) if u != v] for v in range(size)])


def cycle(size: int) -> Graph:
    return graph_of([sorted({(v - 1) % size, (v + 1) % size}) for v in range(size)])


def test_one_target_of_a_cycle() -> None:
    """1, 3, 5, 7 vertices: two new ones a hop, and the mini-batch does not walk back."""
    found = expected_sizes(degree_distribution(cycle(10_000)), [-1, -1, -1], 1)
    assert found.vertices == pytest.approx((7, 5, 3, 1), rel=2e-3)
    assert found.edges == pytest.approx((10, 6, 2), rel=2e-3)


def test_one_neighbor_of_a_cycle() -> None:
    """The target and one neighbour, then each of them picks.

    The target picks anew, half the time the other neighbour; so does the neighbour.
    """
    found = expected_sizes(degree_distribution(cycle(10_000)), [1, 1], 1)
    assert found.vertices == pytest.approx((3, 2, 1), rel=2e-3)
    assert found.edges == pytest.approx((2, 1), rel=2e-3)


def test_a_directed_cycle() -> None:
    found = expected_sizes(
        degree_distribution(graph_of([[(v - 1) % 5000] for v in range(5000)])), [-1, -1], 10
    )
    assert found.vertices == pytest.approx((30, 20, 10), rel=0.01)
    assert found.edges == pytest.approx((20, 10), rel=0.01)


def test_targets_of_a_star() -> None:
    """b leaves reach the hub, who takes 5 more; the hub is a target itself one time in 101."""
    degrees = degree_distribution(star(100))
    found = expected_sizes(degrees, [5, 5], 20)
    # Edges of the targets: a leaf has one, the hub five.
    assert found.edges[1] == pytest.approx(20 * (100 * 1 + 5) / 101)
    assert found.vertices[1] == pytest.approx(21 + 20 / 101 * 3, rel=0.02)
    assert found.edges[0] == pytest.approx(found.vertices[1] - 1 + 5, rel=0.02)


@pytest.mark.parametrize("targets", [1, 7, 40])
def test_a_complete_graph(targets: int) -> None:
    """A vertex is missed by each target with 1 - 4 / 39; the targets are distinct and draw independently."""
    found = expected_sizes(degree_distribution(complete(40)), [4], targets)
    expected = 40 - (40 - targets) * (1 - 4 / 39) ** targets
    assert found.vertices[0] == pytest.approx(expected, rel=0.03)
    assert found.edges == pytest.approx((4 * targets,))


def test_all_targets_reach_all() -> None:
    graph = random_graph(200, 6, 0)
    degrees = degree_distribution(graph)
    found = expected_sizes(degrees, [-1, 3], 200)
    assert found.vertices == pytest.approx((200, 200, 200))
    ins = np.diff(graph.topology.indptr)
    assert found.edges == pytest.approx((np.minimum(ins, 3).sum(), ins.sum()))
    assert expected_sizes(degrees, [-1, 3], 10**9) == found


def test_no_targets_and_no_edges() -> None:
    degrees = degree_distribution(random_graph(50, 4, 1))
    assert expected_sizes(degrees, [3, 3], 0) == BlockSizes(vertices=(0, 0, 0), edges=(0, 0))
    lonely = degree_distribution(graph_of([[] for _ in range(6)]))
    assert expected_sizes(lonely, [3], 2) == BlockSizes(vertices=(2, 2), edges=(0,))
    nothing = DegreeDistribution.from_classes(DegreeClasses.from_degrees(np.zeros(0, np.int64)))
    assert expected_sizes(nothing, [3], 2) == BlockSizes(vertices=(0, 0), edges=(0,))


def test_self_loops_are_sampled_and_reach_nothing() -> None:
    graph = graph_of([[v] for v in range(50)])
    found = expected_sizes(degree_distribution(graph), [4, 4], 10)
    assert found.vertices == pytest.approx((10, 10, 10))
    assert found.edges == pytest.approx((10, 10))


@pytest.mark.parametrize("fanouts", [[3], [5, 3], [4, -1]], ids=str)
@pytest.mark.parametrize("targets", [10, 120])
def test_a_directed_graph_of_skewed_degrees(fanouts: list[int], targets: int) -> None:
    graph = random_graph(1500, 7, 3)
    found, expected = (
        expected_sizes(degree_distribution(graph), fanouts, targets),
        sampled(graph, fanouts, targets),
    )
    assert found.edges == pytest.approx(expected.edges, rel=0.04)
    assert found.vertices == pytest.approx(expected.vertices, rel=0.04)


@pytest.mark.parametrize("fanouts", [[10], [25, 10], [5, 5], [10, 10, 10]], ids=str)
@pytest.mark.parametrize("targets", [32, 256])
def test_a_generated_graph(fanouts: list[int], targets: int) -> None:
    graph = open_graph("synthetic:community,vertices=8k,edges=120k,features=4,seed=3")
    found, expected = (
        expected_sizes(degree_distribution(graph), fanouts, targets),
        sampled(graph, fanouts, targets),
    )
    assert found.edges == pytest.approx(expected.edges, rel=0.05)
    assert found.vertices == pytest.approx(expected.vertices, rel=0.05)


def test_a_lattice_whose_neighborhoods_overlap() -> None:
    """The king's graph: 9 vertices around a target, 25 in two hops; degrees alone would say 57."""
    side = 60
    near = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    rows = [
        [(x + a) % side * side + (y + b) % side for a, b in near] for x in range(side) for y in range(side)
    ]
    degrees = degree_distribution(graph_of(rows))
    found = expected_sizes(degrees, [-1, -1], 1)
    assert found.vertices == pytest.approx((25, 9, 1), rel=0.03)
    alone = DegreeDistribution.from_classes(DegreeClasses.from_degrees(np.full(side**2, 8)))
    assert expected_sizes(alone, [-1, -1], 1).vertices[0] == pytest.approx(65, rel=0.05)


def test_targets_unlike_other_vertices() -> None:
    graph = random_graph(800, 8, 5)
    ins = np.diff(graph.topology.indptr)
    chosen = np.flatnonzero(ins >= np.quantile(ins, 0.8))
    expected = 30 * np.minimum(ins[chosen], 20).mean()
    degrees = degree_distribution(graph, chosen)
    assert expected_sizes(degrees, [20], 30).edges == pytest.approx((expected,))


@given(graphs(max_vertices=80), st.lists(st.sampled_from([-1, 1, 2, 5, 50]), min_size=1, max_size=3))
@settings(deadline=None, max_examples=80)
def test_bounds(graph: Graph, fanouts: list[int]) -> None:
    degrees = degree_distribution(graph)
    num, ins = graph.num_vertices, np.diff(graph.topology.indptr)
    sizes = [expected_sizes(degrees, fanouts, num * part) for part in (0.0, 0.01, 0.1, 0.3, 0.7, 1.0)]
    for found in sizes:
        assert max(found.vertices) <= num * (1 + 1e-9)
        for layer, fanout in enumerate(reversed(fanouts)):
            assert found.vertices[layer] >= found.vertices[layer + 1] * (1 - 1e-9)
            assert found.vertices[layer] <= found.vertices[layer + 1] + found.edges[layer] + 1e-9
            most = ins.sum() if fanout < 0 else np.minimum(ins, fanout).sum()
            assert found.edges[layer] <= most * (1 + 1e-9)
    for less, more in pairwise(sizes):
        for a, b in zip(less.vertices + less.edges, more.vertices + more.edges, strict=True):
            assert b >= a * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize(
    ("fanouts", "targets"), [([], 1), ([0], 1), ([-2], 1), ([3], -1), ([3], float("nan"))]
)
def test_what_cannot_be_asked(fanouts: list[int], targets: float) -> None:
    with pytest.raises(ValueError, match=r"use one per layer|targets must be a number of at least 0"):
        expected_sizes(DegreeDistribution.assumed(10, 20), fanouts, targets)


@pytest.mark.parametrize(("vertices", "edges"), [((1.0,), (1.0,)), ((1.0, -1.0), (1.0,))])
def test_sizes_that_do_not_belong_together(vertices: tuple, edges: tuple) -> None:
    with pytest.raises(ValueError, match=r"one more vertex count|at least 0, got"):
        BlockSizes(vertices=vertices, edges=edges)


def test_imports_neither_torch_nor_numba() -> None:
    code = (
        "import sys, hyrt_perfmodel.expected_sizes, hyrt_perfmodel.expected_sizes; "
        "print({'torch', 'numba', 'hyrt'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
