"""FastGCN and LADIES against their papers' probabilities, worked out from dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from small_graphs import random_graph, row, sampled_rows

from hyrt.config import build_config
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.layer_samplers import column_probabilities, inclusion_probabilities

ALONE = Workers(1, "test")
NUM, SIZE = 90, 25
GRAPH = random_graph(NUM, 9, seed=4)
EVERYONE = np.arange(NUM, dtype=np.int32)


def adjacency(graph: Graph) -> np.ndarray:
    """[V, V] GCN-normalised, without self loops; row v has the sources of v."""
    dense = np.zeros((graph.num_vertices, graph.num_vertices))
    for v in range(graph.num_vertices):
        dense[v, row(graph, v)] = 1
    degrees = dense.sum(1) + 1
    return dense / np.sqrt(degrees[:, None] * degrees[None, :])


def chances_by_hand(importance: np.ndarray, size: int) -> np.ndarray:
    some = importance > 0
    if some.sum() <= size:
        return some.astype(float)
    over = lambda c: np.minimum(1, c * importance).sum() - size  # noqa: E731
    return np.minimum(1, optimize.brentq(over, 0, 1 / importance[some].min(), xtol=1e-14) * importance)


def blocks_of(kind: str, step: int, *, scaled: bool, units: np.ndarray = EVERYONE) -> list[Block]:
    config = {"sampler": {"kind": kind, "layer_size": SIZE, "scale_weights": scaled}}
    sampler = build_config(config).sampler.build(GRAPH, EVERYONE, layers=2, batch_size=NUM, seed=3)
    return sampler.sample(step, units, ALONE, in_place=False).blocks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40), st.integers(1, 45))
def test_chances_add_up_to_the_size(importance: list[float], size: int) -> None:
    found = inclusion_probabilities(np.array(importance), size)
    assert found.sum() == pytest.approx(min(size, len(importance)), rel=1e-9)
    assert found == pytest.approx(chances_by_hand(np.array(importance), size), rel=1e-6)


def test_fastgcn_draws_by_the_norms_of_columns() -> None:
    wanted = chances_by_hand((adjacency(GRAPH) ** 2).sum(0), SIZE)
    assert column_probabilities(GRAPH.topology, SIZE) == pytest.approx(wanted, rel=1e-9)


def inclusions(kind: str, steps: int) -> tuple[np.ndarray, list[Block]]:
    """How often each vertex was drawn for the last layer, whose destinations are all vertices."""
    config = {"sampler": {"kind": kind, "layer_size": SIZE, "scale_weights": False}}
    sampler = build_config(config).sampler.build(GRAPH, EVERYONE, layers=1, batch_size=NUM, seed=8)
    counts, blocks = np.zeros(NUM), []
    for step in range(steps):
        block = sampler.sample(step, EVERYONE, ALONE, in_place=True).blocks[0]
        counts[np.unique(block.columns)] += 1
        blocks.append(
            Block(
                **{
                    name: getattr(block, name)
                    for name in (
                        "indptr",
                        "columns",
                        "destinations",
                        "sources",
                        "num_src",
                        "degrees",
                        "source_degrees",
                        "layer",
                        "weights",
                    )
                }
            )
        )
    return counts / steps, blocks


@pytest.mark.parametrize("kind", ["fastgcn", "ladies"])
def test_inclusions_and_sums_are_those_of_the_paper(kind: str) -> None:
    """Sums, means and GCN's sums have those over all neighbours as expectation, within 4.5 deviations."""
    dense, steps = adjacency(GRAPH), 1500
    chances = chances_by_hand((dense**2).sum(0), SIZE)
    found, blocks = inclusions(kind, steps)
    spread = np.sqrt(chances * (1 - chances) / steps)
    assert np.abs((found - chances) / np.maximum(spread, 1e-9)).max() < 4.5
    x = np.random.default_rng(0).normal(1, 1, NUM)
    for matrix in (dense, (dense > 0).astype(float)):
        estimates = np.zeros((steps, NUM))
        for step, block in enumerate(blocks):
            rows = np.repeat(np.arange(NUM), np.diff(block.indptr))
            np.add.at(estimates[step], rows, matrix[rows, block.columns] * block.weights * x[block.columns])
        error = estimates.std(0) / np.sqrt(steps) + 1e-9
        assert np.abs((estimates.mean(0) - matrix @ x) / error).max() < 4.5


def test_ladies_draws_among_the_neighbours_of_the_destinations() -> None:
    """Layer by layer: the destinations' rows of the adjacency, their columns' norms, the inverse chances."""
    dense = adjacency(GRAPH)
    lower, upper = blocks_of("ladies", 5, scaled=False)
    for block in (upper, lower):
        rows = dense[block.destinations]
        chances = chances_by_hand((rows**2).sum(0), SIZE)
        drawn = set()
        for i, neighbors in enumerate(sampled_rows(block)):
            weights = block.weights[block.indptr[i] : block.indptr[i + 1]]
            assert weights == pytest.approx(1 / chances[neighbors], rel=1e-5)
            drawn |= set(neighbors)
        # Whoever is drawn is there for all whose neighbour it is.
        for v, neighbors in zip(block.destinations, sampled_rows(block), strict=True):
            assert set(neighbors) == drawn & set(row(GRAPH, int(v)))


@pytest.mark.parametrize("kind", ["fastgcn", "ladies"])
def test_scaled_weights_add_up_to_the_degree(kind: str) -> None:
    for block in blocks_of(kind, 2, scaled=True):
        sums = np.add.reduceat(np.append(block.weights, 0), block.indptr[:-1])
        some = np.diff(block.indptr) > 0
        assert sums[some] == pytest.approx(block.degrees[some], rel=1e-5)


@pytest.mark.parametrize("kind", ["fastgcn", "ladies"])
def test_all_are_drawn_where_the_layer_is_large_enough(kind: str) -> None:
    config = {"sampler": {"kind": kind, "layer_size": NUM}}
    sampler = build_config(config).sampler.build(GRAPH, EVERYONE, layers=2, batch_size=7, seed=3)
    for block in sampler.sample(0, sampler.units(0), ALONE, in_place=False).blocks:
        assert (block.weights == 1).all()
        assert sampled_rows(block) == [row(GRAPH, int(v)) for v in block.destinations]
