"""Even ranks at the least cost, against brute force and another solver."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.sampling.small_graphs import graph_of

from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.load_balancing import expected_remote_rows, min_cost_assignment
from hyrt.distributed.strategies.strategy import Seeds


@given(st.integers(1, 3), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_no_assignment_within_the_bounds_is_cheaper(ranks: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 6, (units, ranks)).astype(float)
    most = rng.integers(0, units + 1, ranks)
    most[rng.integers(ranks)] += max(0, units - most.sum())
    found = min_cost_assignment(costs, costs.argmin(axis=1), most.tolist())
    loads = np.bincount(found, minlength=ranks)
    assert (loads <= most).all()
    least = min(
        sum(costs[unit, rank] for unit, rank in enumerate(each))
        for each in itertools.product(range(ranks), repeat=units)
        if all(each.count(rank) <= limit for rank, limit in enumerate(most))
    )
    assert costs[np.arange(units), found].sum() == pytest.approx(least)


def test_as_cheap_as_a_solver_of_assignments() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(5)
    for ranks in (2, 5, 8):
        costs = rng.random((160, ranks)) + rng.random(ranks)
        most = [math.ceil(160 / ranks)] * ranks
        found = min_cost_assignment(costs, costs.argmin(axis=1), most)
        places = np.repeat(np.arange(ranks), most)
        of_units, of_places = optimize.linear_sum_assignment(costs[:, places])
        least = costs[of_units, places[of_places]].sum()
        assert costs[np.arange(160), found].sum() == pytest.approx(least, rel=1e-9)
        assert (np.bincount(found, minlength=ranks) <= most).all()


def test_too_many_units_are_refused() -> None:
    with pytest.raises(ValueError, match="3 units are too many: the ranks take at most 2"):
        min_cost_assignment(np.zeros((3, 2)), np.zeros(3, int), [1, 1])


def test_homes_that_are_even_enough_move_nothing() -> None:
    homes = np.array([0, 1, 0, 1, 1])
    # The rows of another part would be cheaper for each unit alone.
    costs = np.where(np.arange(2) == homes[:, None], 5.0, 1.0)
    np.testing.assert_array_equal(HomeStrategy(1.2).place(Seeds(homes, 2, lambda: costs)).ranks, homes)


def test_uneven_homes_move_what_costs_least() -> None:
    homes = np.array([0, 0, 0, 0, 1])
    costs = np.array([[0, 9], [0, 2], [0, 8], [0, 3], [4, 0]], float)
    assert HomeStrategy(1.0).place(Seeds(homes, 2, lambda: costs)).ranks.tolist() == [0, 1, 0, 0, 1]
    assert HomeStrategy(1.0).place(Seeds(homes, 2)).ranks.tolist() == [0, 0, 0, 0, 1]


@given(st.integers(2, 4), st.integers(2, 9), st.sampled_from([-1, 1, 2, 3]), st.integers(0, 2**32 - 1))
def test_expected_rows_are_the_mean_over_all_draws(ranks: int, num: int, fanout: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero((rng.random(num) < 0.5) & (np.arange(num) != v)) for v in range(num)]
    homes = rng.integers(0, ranks, num).astype(np.uint8)
    roots = rng.permutation(num)[: rng.integers(1, num + 1)].astype(np.int32)
    topology = graph_of(rows).topology
    found = expected_remote_rows(topology, roots, homes, ranks, fanout)
    for i, root in enumerate(roots):
        count = len(rows[root]) if fanout < 0 else min(fanout, len(rows[root]))
        draws = list(itertools.combinations(rows[root].tolist(), count))
        for rank in range(ranks):
            mean = fmean(sum(homes[v] != rank for v in (*drawn, root)) for drawn in draws)
            assert found[i, rank] == pytest.approx(mean)
