"""Every neighbour is equally likely, and so is every set of neighbours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats
from small_graphs import graph_of

from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler

DRAWS = 2000
STEPS = 10
# Seeds are fixed, so these never fail by chance: they would have when they were written.
ENOUGH = 1e-3


def positions(degree: int, fanout: int, seed: int = 0) -> np.ndarray:
    """[STEPS, DRAWS, fanout] which of its `degree` neighbours each of many equal vertices drew."""
    # Vertices 0..degree-1 are the neighbours of all others.
    graph = graph_of([[]] * degree + [range(degree)] * DRAWS)
    targets = np.arange(degree, degree + DRAWS, dtype=np.int32)
    sampler = NeighborSampler(graph, targets, [fanout], DRAWS, seed)
    workers = Workers(1, "test")
    drawn = []
    for step in range(STEPS):
        batch = sampler.sample(step, targets, workers, in_place=True)
        drawn.append(batch.blocks[0].columns.reshape(DRAWS, fanout).copy())
        batch.release()
    return np.stack(drawn)


@pytest.mark.parametrize(
    ("degree", "fanout"),
    [(2, 1), (10, 1), (10, 9), (40, 10), (500, 25), (1000, 64), (100, 64), (100, 65), (1000, 65), (300, 200)],
)
def test_inclusion_counts_are_uniform(degree: int, fanout: int) -> None:
    drawn = positions(degree, fanout)
    counts = np.bincount(drawn.ravel(), minlength=degree)
    expected = STEPS * DRAWS * fanout / degree
    # Inclusions of one draw exclude each other: their covariance leaves (1 - f/d) d/(d-1) of Pearson's
    # statistic.
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 - fanout / degree) * (degree - 1) / degree
    assert stats.chi2.sf(statistic, degree - 1) > ENOUGH
    assert stats.chi2.cdf(statistic, degree - 1) > ENOUGH


@pytest.mark.parametrize(("degree", "fanout"), [(4, 2), (5, 3), (8, 3), (12, 2), (7, 6), (12, 10)])
def test_every_set_is_equally_likely_with_few_neighbours(degree: int, fanout: int) -> None:
    drawn = np.sort(positions(degree, fanout).reshape(-1, fanout), axis=1)
    codes = (drawn * degree ** np.arange(fanout)).sum(axis=1)
    possible = [
        sum(v * degree**k for k, v in enumerate(subset))
        for subset in itertools.combinations(range(degree), fanout)
    ]
    counts = np.array([(codes == code).sum() for code in possible])
    assert counts.sum() == STEPS * DRAWS
    assert stats.chisquare(counts).pvalue > ENOUGH


@pytest.mark.parametrize(("degree", "fanout"), [(65, 64), (66, 64), (66, 65), (67, 65)])
def test_every_set_is_equally_likely_with_many_neighbours(degree: int, fanout: int) -> None:
    """Told by the one or two neighbours left out."""
    drawn = positions(degree, fanout).reshape(-1, fanout)
    there = np.zeros((len(drawn), degree), np.bool_)
    np.put_along_axis(there, drawn.astype(np.int64), True, axis=1)
    left_out = np.nonzero(~there)[1].reshape(len(drawn), degree - fanout)
    codes = left_out[:, 0] if left_out.shape[1] == 1 else left_out[:, 0] * degree + left_out[:, 1]
    _, counts = np.unique(codes, return_counts=True)
    possible = degree if left_out.shape[1] == 1 else degree * (degree - 1) // 2
    counts = np.concatenate([counts, np.zeros(possible - len(counts), np.int64)])
    assert stats.chisquare(counts).pvalue > ENOUGH


@pytest.mark.parametrize(("degree", "fanout"), [(20, 5), (80, 70)])
def test_pairs_are_as_likely_as_each_other(degree: int, fanout: int) -> None:
    drawn = positions(degree, fanout).reshape(-1, fanout)
    there = np.zeros((len(drawn), degree))
    np.put_along_axis(there, drawn.astype(np.int64), 1.0, axis=1)
    together = there.T @ there
    pairs = together[np.triu_indices(degree, 1)]
    p = fanout * (fanout - 1) / (degree * (degree - 1))
    z = (pairs - len(drawn) * p) / np.sqrt(len(drawn) * p * (1 - p))
    # Bonferroni over the pairs.
    assert np.abs(z).max() < stats.norm.isf(ENOUGH / len(z) / 2)


def test_vertices_and_steps_are_independent() -> None:
    drawn = positions(5, 1)[:, :, 0]
    for a, b in [(drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:])]:
        table = np.zeros((5, 5))
        np.add.at(table, (a.ravel(), b.ravel()), 1)
        assert stats.chi2_contingency(table).pvalue > ENOUGH


def test_layers_are_independent() -> None:
    # Targets point at themselves too: with all neighbours in the upper layer, they are drawn for again below.
    degree = 6
    graph = graph_of([[]] * degree + [[*range(degree), degree + i] for i in range(DRAWS)])
    targets = np.arange(degree, degree + DRAWS, dtype=np.int32)
    sampler = NeighborSampler(graph, targets, [1, 1], DRAWS, 0)
    workers = Workers(1, "test")
    table = np.zeros((degree + 1, degree + 1))
    for step in range(STEPS):
        below, above = sampler.sample(step, targets, workers, in_place=False).blocks
        assert above.sources is not None
        assert below.sources is not None
        picks = [
            np.minimum(above.sources[above.columns], degree),
            np.minimum(below.sources[below.columns[: below.indptr[DRAWS]]], degree),
        ]
        np.add.at(table, (picks[0], picks[1]), 1)
    assert table.sum() == STEPS * DRAWS
    assert stats.chi2_contingency(table).pvalue > ENOUGH
