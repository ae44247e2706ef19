"""Parts of a step that follow from the ranks' speeds, and the same weights with any parts."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from graphs import random_graph
from hypothesis import given
from hypothesis import strategies as st
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import settings, trained_alone, trained_on, weights

from hyrt.config import build_config
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.strategies.evening.shares_by_speed import MeasuredEpoch, shares_by_speed
from hyrt.distributed.strategies.home import Home
from hyrt.distributed.strategies.strategy import Roots
from hyrt.errors import ConfigError
from hyrt.observe.hook import Hook, Site

T = TypeVar("T")
SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=5)


def simulated(speeds: list[float], least_s: float, lag: int) -> list[MeasuredEpoch]:
    """Epochs of ranks with such speeds, which take at least so long whatever the parts are."""
    found: list[MeasuredEpoch] = []
    for number in range(6 * lag):
        shares = shares_by_speed(found[: max(0, number + 1 - lag)], len(speeds), lag)
        seconds = max(least_s, *(share / speed for share, speed in zip(shares, speeds, strict=True)))
        found.append(MeasuredEpoch(seconds, tuple(speeds)))
    return found


@given(SPEEDS, st.integers(1, 3))
def test_all_ranks_come_to_take_the_same_time(speeds: list[float], lag: int) -> None:
    num = len(speeds)
    shares = shares_by_speed(simulated(speeds, 0.0, lag), num, lag)
    assert sum(shares) == pytest.approx(1)
    slowest = max(share / speed for share, speed in zip(shares, speeds, strict=True))
    # Nobody can be faster than all of them together; less than 5 % is not worth a change.
    assert 1 / sum(speeds) <= slowest * (1 + 1e-9)
    assert 0.95 * slowest <= 1 / sum(speeds) * (1 + 1e-9)


@given(SPEEDS, st.integers(1, 3))
def test_parts_that_make_nothing_faster_are_taken_back(speeds: list[float], lag: int) -> None:
    # The network bounds every epoch: parts are tried once at most.
    shares = shares_by_speed(simulated(speeds, 100.0, lag), len(speeds), lag)
    assert shares == (1 / len(speeds),) * len(speeds)


def test_the_first_epoch_says_nothing_and_a_rank_without_units_is_like_the_slowest() -> None:
    first = MeasuredEpoch(9.0, (1.0, 3.0))
    assert shares_by_speed([], 2) == shares_by_speed([first], 2) == (0.5, 0.5)
    assert shares_by_speed([first, MeasuredEpoch(5.0, (1.0, 3.0))], 2) == (0.25, 0.75)
    assert shares_by_speed([first, MeasuredEpoch(5.0, (None, 2.0, 6.0))], 3) == (0.2, 0.2, 0.6)
    assert shares_by_speed([first, MeasuredEpoch(5.0, (None, None))], 2) == (0.5, 0.5)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_no_placement_within_the_parts_is_cheaper(seed: int, knows_rows: bool) -> None:
    rng = np.random.default_rng(seed)
    ranks, units = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    homes = rng.integers(0, ranks, units).astype(np.uint8)
    shares = tuple(rng.integers(1, 5, ranks).astype(float))
    rows = rng.integers(0, 6, (units, ranks)).astype(float)
    most = [math.ceil(1.05 * units * share / sum(shares)) for share in shares]
    placed = Home(shares=shares).place(Roots(homes, ranks, (lambda: rows) if knows_rows else None)).ranks
    assert (np.bincount(placed, minlength=ranks) <= most).all()

    def cost(placement: tuple[int, ...]) -> float:
        moved = [(unit, rank) for unit, rank in enumerate(placement) if rank != homes[unit]]
        if not knows_rows:
            return float(len(moved))
        return sum(max(0.0, rows[unit, rank] - rows[unit, homes[unit]]) for unit, rank in moved)

    least = min(
        cost(each)
        for each in itertools.product(range(ranks), repeat=units)
        if (np.bincount(each, minlength=ranks) <= most).all()
    )
    assert cost(tuple(placed.tolist())) == pytest.approx(least)


class Slow(Hook):
    """Makes a rank slow: it takes so many seconds more for each unit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.units: list[tuple[int, int]] = []

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        if stage == "propagate":
            self.units.append((site.step, site.units))
            time.sleep(self._seconds * site.units)
        return work()


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_slow_rank_gets_less_and_the_weights_are_those_of_one_process(pipelined: bool) -> None:
    graph = random_graph(seed=4)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    more: dict[str, Any] = {"distributed": {"shares": "measured"}, "runtime": {"pipelined": pipelined}}
    more["train"] = {"epochs": 7, "lr": 0.01}
    wanted = weights(trained_alone(graph, settings("gcn", train=more["train"]))[0])
    slow = [Slow(0.0), Slow(0.001)]

    def work(ranks: JoinedRanks) -> Any:
        return trained_on(ranks, graph, homes, settings("gcn", **more), hooks=[slow[ranks.rank]])

    results = [result for result, _ in results_of(2, work)]
    shares = results[0].summary["rank_shares"]
    assert results[1].summary["rank_shares"] == shares
    assert shares[1] < 0.3
    # As many as fit, of the steps of the last epoch but the last one, which is short.
    per_epoch = -(-len(graph.split("train")) // 32)
    last = [units for step, units in slow[1].units if step // per_epoch == 6][:-1]
    assert max(last) <= math.ceil(32 * 1.05 * (shares[1] + 0.0005))
    for result in results:
        assert torch.equal(weights(result), weights(results[0]))
        assert (weights(result) - wanted).norm() < 1e-5 * wanted.norm()


def test_given_parts_are_kept_to() -> None:
    graph = random_graph(seed=4)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    seen = [Slow(0.0), Slow(0.0)]
    chosen = settings("gcn", distributed={"shares": [3, 1]}, train={"epochs": 1, "lr": 0.01})
    results_of(2, lambda ranks: trained_on(ranks, graph, homes, chosen, hooks=[seen[ranks.rank]]))
    of_rank = [dict(each.units) for each in seen]
    full = [step for step in of_rank[0] if of_rank[0][step] + of_rank[1].get(step, 0) == 32]
    assert full
    assert all(of_rank[1].get(step, 0) <= math.ceil(32 / 4 * 1.05) for step in full)


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"shares": [1, 2], "strategy": "hopgnn"}, "distributed.shares is of strategy home"),
        ({"shares": [1, 0]}, "greater than 0"),
        ({"shares": "fast"}, "distributed.shares"),
    ],
)
def test_wrong_parts_are_refused(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_config({"distributed": given_settings})
