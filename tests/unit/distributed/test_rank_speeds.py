"""Parts of a step that follow from the ranks' speeds, and the same weights with any parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from graphs import random_graph
from hypothesis import given
from hypothesis import strategies as st
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import settings, trained_alone, trained_on, weights

from hyrt.config import build_config
from hyrt.distributed import monitoring
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.monitoring import RankSpeeds
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.load_balancing import MeasuredEpoch, speed_weighted_shares
from hyrt.distributed.strategies.strategy import Seeds
from hyrt.errors import ConfigError
from hyrt.predict.counted_traffic import configured_steps
from hyrt.telemetry.events import EpochEnded, Event
from hyrt.telemetry.hooks import Hook, Site

T = TypeVar("T")
SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=5)


def simulated(speeds: list[float], least_s: float, lag: int) -> list[MeasuredEpoch]:
    """Epochs of ranks with such speeds, which take at least so long whatever the parts are."""
    found: list[MeasuredEpoch] = []
    for number in range(6 * lag):
        shares = speed_weighted_shares(found[: max(0, number + 1 - lag)], len(speeds), lag)
        seconds = max(least_s, *(share / speed for share, speed in zip(shares, speeds, strict=True)))
        found.append(MeasuredEpoch(seconds, tuple(speeds)))
    return found


@given(SPEEDS, st.integers(1, 3))
def test_all_ranks_come_to_take_the_same_time(speeds: list[float], lag: int) -> None:
    num = len(speeds)
    shares = speed_weighted_shares(simulated(speeds, 0.0, lag), num, lag)
    assert sum(shares) == pytest.approx(1)
    slowest = max(share / speed for share, speed in zip(shares, speeds, strict=True))
    # Nobody can be faster than all of them together; less than 5 % is not worth a change.
    assert 1 / sum(speeds) <= slowest * (1 + 1e-9)
    assert 0.95 * slowest <= 1 / sum(speeds) * (1 + 1e-9)


@given(SPEEDS, st.integers(1, 3))
def test_parts_that_make_nothing_faster_are_taken_back(speeds: list[float], lag: int) -> None:
    # The network bounds every epoch: parts are tried once at most.
    shares = speed_weighted_shares(simulated(speeds, 100.0, lag), len(speeds), lag)
    assert shares == (1 / len(speeds),) * len(speeds)


def test_the_first_epoch_says_nothing_and_a_rank_without_units_is_like_the_slowest() -> None:
    first = MeasuredEpoch(9.0, (1.0, 3.0))
    assert speed_weighted_shares([], 2) == speed_weighted_shares([first], 2) == (0.5, 0.5)
    assert speed_weighted_shares([first, MeasuredEpoch(5.0, (1.0, 3.0))], 2) == (0.25, 0.75)
    assert speed_weighted_shares([first, MeasuredEpoch(5.0, (None, 2.0, 6.0))], 3) == (0.2, 0.2, 0.6)
    assert speed_weighted_shares([first, MeasuredEpoch(5.0, (None, None))], 2) == (0.5, 0.5)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_no_placement_within_the_parts_is_cheaper(seed: int, knows_rows: bool) -> None:
    rng = np.random.default_rng(seed)
    ranks, units = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    homes = rng.integers(0, ranks, units).astype(np.uint8)
    shares = tuple(rng.integers(1, 5, ranks).astype(float))
    rows = rng.integers(0, 6, (units, ranks)).astype(float)
    most = [math.ceil(1.05 * units * share / sum(shares)) for share in shares]
    placed = (
        HomeStrategy(shares=shares).place(Seeds(homes, ranks, (lambda: rows) if knows_rows else None)).ranks
    )
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


class Units(Hook):
    """Notes how many units a rank trains in each step."""

    def __init__(self) -> None:
        self.of_step: dict[int, int] = {}

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        if stage == "propagate":
            self.of_step[site.step] = site.units
        return work()


class Told(RankSpeeds):
    """Measures what it is told: the first rank is three times as fast as the second."""

    def _speed(self) -> float:
        return 3.0 - 2.0 * self._group.rank

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            parts = self.shares_of(event.step - 1)
            event = replace(event, seconds=max(parts[0] / 3, parts[1]))
        super().on_event(event)


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_slow_rank_gets_less_and_the_weights_are_those_of_one_process(
    pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyrt.distributed.rank_setup.RankSpeeds", Told)
    graph = random_graph(seed=4)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    more: dict[str, Any] = {"distributed": {"shares": "measured"}, "runtime": {"pipelined": pipelined}}
    more["train"] = {"epochs": 5, "lr": 0.01}
    wanted = weights(trained_alone(graph, settings("gcn", train=more["train"]))[0])
    seen = [Units(), Units()]

    def work(ranks: DistributedContext) -> Any:
        return trained_on(ranks, graph, homes, settings("gcn", **more), hooks=[seen[ranks.rank]])

    results = [result for result, _ in results_of(2, work)]
    for result in results:
        assert result.summary["rank_shares"] == [0.75, 0.25]
        assert torch.equal(weights(result), weights(results[0]))
        assert (weights(result) - wanted).norm() < 1e-5 * wanted.norm()
    most = [units for _, units in sorted(seen[1].of_step.items())]
    # The first two epochs have equal parts; of 32 units, the last one has a quarter.
    per_epoch = -(-len(graph.split("train")) // 32)
    assert max(most[:per_epoch]) > 9
    assert max(most[-per_epoch:]) == 9


def test_a_rank_is_as_fast_as_its_slowest_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(monitoring.time, "perf_counter", lambda: now[0])

    def takes(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    for overlapped, slowest_s in ((True, 4.0), (False, 1.5 + 0.5 + 0.25 + 4.0)):
        speeds = RankSpeeds(Mock(spec=RankGroup), 10, 1, overlapped=overlapped)
        assert speeds._speed() is None
        # Two trainers: one thread samples and loads for both, each propagates by itself.
        for trainer, units, sampled_s, propagated_s in ((0, 30, 1.0, 4.0), (1, 10, 0.5, 3.0)):
            site = Site("cpu", 3, trainer, 0, units)
            speeds.wrap_call("sample", site, takes(sampled_s))
            speeds.wrap_call("load", site, takes(0.25))
            speeds.wrap_call("transfer", site, takes(0.25))
            speeds.wrap_call("propagate", site, takes(propagated_s))
            speeds.wrap_call("update", site, takes(100.0))
        speeds.wrap_call("propagate", Site("cpu", 4, 0, 0, 0), takes(100.0))
        assert speeds._speed() == pytest.approx(40 / slowest_s)
        assert speeds._speed() is None


def test_given_parts_are_kept_to() -> None:
    graph = random_graph(seed=4)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    seen = [Units(), Units()]
    chosen = settings("gcn", distributed={"shares": [3, 1]}, train={"epochs": 1, "lr": 0.01})
    results_of(2, lambda ranks: trained_on(ranks, graph, homes, chosen, hooks=[seen[ranks.rank]]))
    of_rank = [each.of_step for each in seen]
    full = [step for step in of_rank[0] if of_rank[0][step] + of_rank[1].get(step, 0) == 32]
    assert full
    assert all(of_rank[1].get(step, 0) <= math.ceil(32 / 4 * 1.05) for step in full)


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"shares": [1, 0]}, "greater than 0"),
        ({"shares": "fast"}, "distributed.shares"),
    ],
)
def test_wrong_parts_are_refused(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_config({"distributed": given_settings})


def test_parts_of_another_number_of_ranks_are_not_predicted() -> None:
    graph = random_graph(seed=4)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    config = build_config(settings("gcn", distributed={"shares": [1, 2, 3]}))
    with pytest.raises(ConfigError, match="has 3 numbers, but there are 2 ranks"):
        configured_steps(config, graph, homes, 2, None)
