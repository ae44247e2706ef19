"""Merging of time steps, on the example of HopGNN's Fig. 10 and in general."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyrt.distributed.monitoring import AdaptiveTimeSteps
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.strategies.hopgnn import (
    HopGnnStrategy,
    decision_lag,
    merge_smallest_time_step,
    num_time_steps,
)
from hyrt.distributed.strategies.strategy import Placement, Seeds


def placement_of(counts: list[list[int]]) -> Placement:
    """One with counts[d][t] roots of model d at time t."""
    found = np.array([(d, t) for d, row in enumerate(counts) for t, n in enumerate(row) for _ in range(n)])
    ranks = np.arange(len(counts), dtype=np.int32)
    return Placement(
        models=found[:, 0].astype(np.int32),
        times=found[:, 1].astype(np.int32),
        paths=(ranks[:, None] + ranks[None]) % len(ranks),
    )


def counts_of(placement: Placement) -> list[list[int]]:
    counts = np.zeros((placement.num_ranks, placement.num_times), int)
    np.add.at(counts, (placement.models, placement.times), 1)
    found: list[list[int]] = counts.tolist()
    return found


def test_the_papers_example_merges_its_second_time_step() -> None:
    # Model m1 has two roots at t1, of which t0 and t2 get one each: 5 and 3.
    before = placement_of([[4, 2, 2], [3, 2, 3], [2, 2, 4]])
    after = merge_smallest_time_step(before)
    assert counts_of(after) == [[5, 3], [4, 4], [3, 5]]
    # t0 and t2 stay: the models skip the ranks that they had at t1.
    assert after.paths.tolist() == [[0, 1, 2], [2, 0, 1]]
    np.testing.assert_array_equal(after.models, before.models)


def test_an_odd_root_goes_to_the_time_with_the_fewest_of_its_model() -> None:
    assert counts_of(merge_smallest_time_step(placement_of([[5, 1, 4], [3, 0, 6], [5, 1, 2]]))) == [
        [5, 5],
        [3, 6],
        [5, 3],
    ]


@given(st.integers(2, 6), st.integers(0, 80), st.integers(0, 2**32 - 1))
def test_every_model_keeps_its_roots_and_the_smallest_time_goes(ranks: int, num: int, seed: int) -> None:
    homes = np.random.default_rng(seed).integers(0, ranks, num)
    placement = HopGnnStrategy().place(Seeds(homes, ranks))
    while placement.num_times > 1:
        before, after = np.array(counts_of(placement)), merge_smallest_time_step(placement)
        now = np.array(counts_of(after))
        np.testing.assert_array_equal(before.sum(axis=1), now.sum(axis=1))
        gone = before.sum(axis=0).argmin()
        dealt = now - np.delete(before, gone, axis=1)
        assert (dealt >= 0).all()
        assert (dealt.max(axis=1) - dealt.min(axis=1) <= 1).all()
        np.testing.assert_array_equal(after.paths, np.delete(placement.paths, gone, axis=0))
        kept = placement.times != gone
        np.testing.assert_array_equal(after.ranks[kept], placement.ranks[kept])
        placement = after
    assert counts_of(placement) == counts_of(HopGnnStrategy(num_times=1).place(Seeds(homes, ranks)))


def test_one_time_step_is_model_centric_training() -> None:
    roots = Seeds(np.array([3, 2, 0, 1, 1, 3, 3, 0, 2]), 4)
    placement = HopGnnStrategy(num_times=1).place(roots)
    assert placement.num_times == 1
    # Whichever time step is left, each rank trains the whole mini-batch of one model.
    for rank in range(4):
        mine = placement.positions_of_rank(rank)
        [model] = set(placement.models[mine])
        np.testing.assert_array_equal(mine, np.flatnonzero(placement.models == model))


def test_more_time_steps_than_ranks_are_all_of_them() -> None:
    roots = Seeds(np.array([0, 1, 1]), 2)
    assert HopGnnStrategy(num_times=9).place(roots).num_times == 2


def test_the_examination_of_the_papers_fig_17() -> None:
    # Four time steps, then three, then two; two take longer than three, so three stay.
    epochs_s = [12.0, 10.0, 11.0, 10.1, 9.0]
    assert [num_time_steps(epochs_s[:n], 4) for n in range(6)] == [4, 3, 2, 3, 3, 3]


def test_an_examination_that_never_gets_slower_ends_at_one_time_step() -> None:
    epochs_s = [12.0, 10.0, 9.0, 8.0, 7.0, 9.0]
    assert [num_time_steps(epochs_s[:n], 3) for n in range(7)] == [3, 2, 1, 1, 1, 1, 1]
    assert [num_time_steps([5.0, 6.0, 3.0][:n], 1) for n in range(4)] == [1, 1, 1, 1]


def test_a_first_merge_that_costs_time_is_taken_back() -> None:
    assert num_time_steps([12.0, 12.0], 4) == 4
    assert num_time_steps([12.0, 12.0, 1.0], 4) == 4


# Seconds of an epoch by its number of time steps: the best one is 3, 1, 4, and 2.
@pytest.mark.parametrize("seconds", [[9, 8, 7, 7.5], [1, 2, 3, 4], [9, 9, 9, 8], [8, 7, 9, 10]])
@pytest.mark.parametrize(
    ("steps", "ahead"), [(1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (10, 3), (100, 4), (1, 1)]
)
def test_epochs_count_for_the_number_of_time_steps_that_they_ran(
    seconds: list[float], steps: int, ahead: int
) -> None:
    """A run is simulated step by step: each step is prepared `ahead` steps before it is trained."""
    ranks = len(seconds)
    chooser = AdaptiveTimeSteps(cast(RankGroup, SimpleNamespace(size=ranks)), steps, steps_ahead=ahead)
    prepared: list[int] = []
    epochs_s: list[float] = []
    for epoch in range(40):
        last = (epoch + 1) * steps
        prepared += [chooser.num_times(step) for step in range(len(prepared), last)]
        numbers = prepared[epoch * steps : last]
        # While the last steps are trained, these are prepared.
        prepared += [chooser.num_times(step) for step in range(last, last + ahead) if step >= len(prepared)]
        epochs_s.append(sum(seconds[number - 1] for number in numbers) / steps)
        chooser.restore(epochs_s)
    # Merging goes on as long as it makes epochs faster.
    best = ranks
    while best > 1 and seconds[best - 2] < seconds[best - 1]:
        best -= 1
    assert prepared[-1] == best


def test_a_decision_waits_until_no_step_was_prepared_before() -> None:
    assert decision_lag(100, 4, 0.05) == 1
    assert decision_lag(79, 4, 0.05) == 2
    assert [decision_lag(steps, 4, 0.05) for steps in (1, 2, 3, 4, 5)] == [5, 3, 3, 2, 2]
    # Epochs 0 and 1 have 4; then 3, of which the first of two says something; epoch 5 has 2 again.
    epochs_s = [9.0, 9.1, 7.0, 8.0, 8.5]
    assert [num_time_steps(epochs_s[:n], 4, lag=2) for n in range(6)] == [4, 3, 3, 2, 2, 3]
