"""Placements and traffic of all strategies, against HopGNN's own example and brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from unit.distributed.placed_steps import input_blocks, micrographs, random_sampler

from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.p3 import column_owners
from hyrt.distributed.strategies.registry import STRATEGIES, create_strategy
from hyrt.distributed.strategies.strategy import InputBlock, Seeds, Traffic, TrafficItemBytes, split_in_order

# HopGNN's Fig. 2, 8 and 9: vertices 4 to 7 live at server 0, 0 to 3 at server 1; the mini-batches are {6, 3}
# and {5, 0}. The micrographs have the vertices and the shares of local rows that the text gives.
PAPER_HOMES = np.array([1, 1, 1, 1, 0, 0, 0, 0], np.uint8)
PAPER_ROOTS = [6, 3, 5, 0]
PAPER_MICROGRAPHS = {6: {6, 5, 7, 1}, 3: {3, 0, 2, 4, 5}, 5: {5, 4, 6, 1, 0}, 0: {0, 2, 3, 7}}


def paper_traffic(chosen: Any) -> Traffic:
    placement = chosen.place(Seeds(PAPER_HOMES[PAPER_ROOTS], 2))
    traffic: Traffic = chosen.traffic(placement, PAPER_HOMES, micrographs(PAPER_ROOTS, PAPER_MICROGRAPHS))
    return traffic


def test_the_papers_example_moves_six_features_instead_of_eight() -> None:
    assert paper_traffic(ModelCentricStrategy()).rows.sum() == 8
    by_time = paper_traffic(HopGnnStrategy(pre_gather=False))
    assert by_time.rows.sum() == 6
    # Model 0 goes to server 1, and model 1 to server 0.
    assert by_time.models.tolist() == [[0, 1], [1, 0]]


def test_the_papers_example_gathers_two_features_at_server_0_instead_of_three() -> None:
    assert paper_traffic(HopGnnStrategy(pre_gather=False)).rows[1, 0] == 3
    assert paper_traffic(HopGnnStrategy()).rows[1, 0] == 2


def test_the_papers_example_trains_6_and_0_before_5_and_3() -> None:
    placement = HopGnnStrategy().place(Seeds(PAPER_HOMES[PAPER_ROOTS], 2))
    groups = [
        [PAPER_ROOTS[i] for i in group] for rank in (0, 1) for group in placement.positions_by_time(rank)
    ]
    assert groups == [[6], [5], [0], [3]]


@st.composite
def steps(draw: st.DrawFn) -> tuple[Any, int, NDArray[np.int64], InputBlock, NDArray[Any]]:
    """A sampler, the number of ranks, the units of a step, their input blocks and all homes."""
    num = draw(st.integers(12, 60))
    ranks = draw(st.integers(1, 5))
    sampler = random_sampler(num, draw(st.integers(0, 99)))
    homes = np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=num, max_size=num)), np.uint8)
    return sampler, ranks, sampler.units(1), input_blocks(sampler, 1), homes


@given(steps(), st.sampled_from(sorted(STRATEGIES)))
def test_every_unit_is_trained_once_by_a_model_that_is_there(step: Any, name: str) -> None:
    _, ranks, units, _, homes = step
    placement = create_strategy(name).place(Seeds(homes[units], ranks))
    everyone = np.concatenate([placement.positions_of_rank(rank) for rank in range(ranks)])
    assert sorted(everyone) == list(range(len(units)))
    assert (np.sort(placement.paths, axis=1) == np.arange(ranks)).all()
    for rank in range(ranks):
        grouped = placement.positions_by_time(rank)
        np.testing.assert_array_equal(np.concatenate(grouped), placement.positions_of_rank(rank))
        for time, group in enumerate(grouped):
            # A rank has one model at a time.
            assert len(set(placement.models[group])) <= 1
            assert all(placement.paths[time, model] == rank for model in placement.models[group])


@given(steps())
def test_roots_are_trained_at_home_by_the_model_they_were_drawn_for(step: Any) -> None:
    _, ranks, units, _, homes = step
    roots = Seeds(homes[units], ranks)
    np.testing.assert_array_equal(HomeStrategy().place(roots).ranks, homes[units])
    hopped = HopGnnStrategy().place(roots)
    np.testing.assert_array_equal(hopped.ranks, homes[units])
    np.testing.assert_array_equal(hopped.models, ModelCentricStrategy().place(roots).ranks)
    sizes = np.bincount(hopped.models, minlength=ranks)
    assert sizes.max() - sizes.min() <= 1


def needed(blocks: InputBlock, positions: NDArray[Any]) -> set[int]:
    sources = blocks(positions).sources
    assert sources is not None
    return {int(v) for v in sources}


@given(steps())
def test_rows_are_those_that_a_search_finds(step: Any) -> None:
    _, ranks, units, blocks, homes = step
    roots = Seeds(homes[units], ranks)
    for chosen in (
        ModelCentricStrategy(),
        HomeStrategy(),
        HopGnnStrategy(),
        HopGnnStrategy(pre_gather=False),
    ):
        placement = chosen.place(roots)
        rows = np.zeros((ranks, ranks), np.int64)
        for rank in range(ranks):
            fetches: list[set[int]] = []
            for time in range(placement.num_times):
                there = (placement.ranks == rank) & (placement.times == time)
                fetches.append(needed(blocks, np.flatnonzero(there)))
            if not (isinstance(chosen, HopGnnStrategy) and not chosen.pre_gather):
                fetches = [set().union(*fetches)]
            for fetch in fetches:
                for vertex in fetch:
                    rows[homes[vertex], rank] += homes[vertex] != rank
        np.testing.assert_array_equal(chosen.traffic(placement, homes, blocks).rows, rows)


@given(steps())
def test_home_fetches_what_pre_gathering_does_and_moves_no_model(step: Any) -> None:
    _, ranks, units, blocks, homes = step
    roots = Seeds(homes[units], ranks)
    home = HomeStrategy().traffic(HomeStrategy().place(roots), homes, blocks)
    hopped = HopGnnStrategy().traffic(HopGnnStrategy().place(roots), homes, blocks)
    np.testing.assert_array_equal(home.rows, hopped.rows)
    assert not home.models.any()
    assert hopped.models.sum() == ranks * (ranks - 1)


@given(steps())
def test_p3_sends_each_first_result_to_its_trainer_and_its_gradient_to_all(step: Any) -> None:
    _, ranks, units, blocks, homes = step
    chosen = create_strategy("p3")
    placement = chosen.place(Seeds(homes[units], ranks))
    hidden = np.zeros((ranks, ranks), np.int64)
    for trainer in range(ranks):
        for other in set(range(ranks)) - {trainer}:
            hidden[other, trainer] += blocks(placement.positions_of_rank(trainer)).num_dst
            hidden[trainer, other] += blocks(placement.positions_of_rank(trainer)).num_dst
    traffic = chosen.traffic(placement, homes, blocks)
    np.testing.assert_array_equal(traffic.hidden, hidden)
    assert not traffic.rows.any()
    assert not traffic.models.any()


@given(steps())
def test_naive_migration_visits_every_rank_with_rows_and_takes_aggregates_along(step: Any) -> None:
    _, ranks, units, blocks, homes = step
    chosen = create_strategy("naive-migration")
    placement = chosen.place(Seeds(homes[units], ranks))
    models, partials = np.zeros((ranks, ranks), np.int64), np.zeros((ranks, ranks), np.int64)
    for model in range(ranks):
        block = blocks(placement.positions_of_rank(model))
        assert block.sources is not None
        of_destinations = [
            {int(homes[block.sources[i]])}
            | {int(homes[block.sources[j]]) for j in block.columns[block.indptr[i] : block.indptr[i + 1]]}
            for i in range(block.num_dst)
        ]
        stops = [rank % ranks for rank in range(model + 1, model + ranks)]
        stops = [rank for rank in stops if any(homes[v] == rank for v in block.sources)]
        here, seen = model, {model}
        for stop in [*stops, model] if stops else []:
            models[here, stop] += 1
            partials[here, stop] += sum(bool(met & seen) for met in of_destinations)
            here = stop
            seen.add(stop)
    traffic = chosen.traffic(placement, homes, blocks)
    np.testing.assert_array_equal(traffic.models, models)
    np.testing.assert_array_equal(traffic.partials, partials)


def test_an_empty_step_sends_nothing_but_models() -> None:
    homes = np.zeros(5, np.uint8)
    for name in STRATEGIES:
        chosen = create_strategy(name)
        placement = chosen.place(Seeds(homes[:0], 3))
        traffic = chosen.traffic(placement, homes, lambda positions: pytest.fail("nothing is sampled"))
        assert not traffic.rows.any(), name
        assert not traffic.hidden.any(), name
        assert not traffic.partials.any(), name


def test_bytes_by_purpose() -> None:
    traffic = Traffic(*(np.array([[0, n], [2 * n, 0]]) for n in (1, 10, 100, 1000)))
    each = TrafficItemBytes(row=2, hidden=3, partial=5, model=7)
    assert (traffic + traffic).bytes_by_purpose(each) == {
        "rows": 12,
        "hidden": 180,
        "partials": 3000,
        "models": 42000,
    }


def test_pieces_differ_by_at_most_one() -> None:
    assert split_in_order(7, 3).tolist() == [0, 0, 1, 1, 1, 2, 2]
    for units, ranks in ((0, 3), (2, 5), (1024, 7)):
        pieces = split_in_order(units, ranks)
        sizes = np.bincount(pieces, minlength=ranks)
        assert (np.diff(pieces) >= 0).all()
        assert len(pieces) == units
        assert sizes.max() - sizes.min() <= 1


@given(st.integers(1, 4), st.integers(1, 200), st.integers(1, 60), st.integers(0, 99))
def test_local_batches_have_their_share_of_every_part(
    ranks: int, num: int, batch_size: int, seed: int
) -> None:
    homes = np.random.default_rng(seed).integers(0, ranks, 3 * num)
    targets = np.arange(0, 3 * num, 3)
    order = LocalOrder(targets, homes, ranks, batch_size, seed)
    batches = [order.batch(step) for step in range(order.steps_per_epoch)]
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)), targets)
    parts = np.bincount(homes[targets], minlength=ranks)
    for batch in batches:
        share = np.bincount(homes[batch], minlength=ranks) / len(batch)
        assert np.abs(share - parts / num).max() <= ranks / len(batch)


def test_local_batches_are_shuffled_anew_in_every_epoch_and_equal_for_equal_seeds() -> None:
    homes = np.arange(90) % 3
    first, second = (LocalOrder(np.arange(90), homes, 3, 30, 7) for _ in range(2))
    np.testing.assert_array_equal(first.batch(4), second.batch(4))
    assert not np.array_equal(first.batch(0), first.batch(3))
    assert not np.array_equal(first.batch(0), LocalOrder(np.arange(90), homes, 3, 30, 8).batch(0))


def test_columns_are_dealt_out_evenly_and_at_random() -> None:
    owners = column_owners(602, 4, seed=3)
    assert sorted(np.bincount(owners)) == [150, 150, 151, 151]
    np.testing.assert_array_equal(owners, column_owners(602, 4, seed=3))
    # Neighbouring columns have the same owner as often as by chance: 601 pairs, a quarter of them.
    assert abs(int((np.diff(owners) == 0).sum()) - 150) < 50


def test_only_local_changes_what_is_trained() -> None:
    assert [name for name in STRATEGIES if create_strategy(name).draws_locally] == ["local"]
    assert [create_strategy(name).name for name in STRATEGIES] == list(STRATEGIES)


def test_an_unknown_strategy_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'hopgnn'"):
        create_strategy("hopgn")


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="num_times must be at least 1"):
        HopGnnStrategy(num_times=0)
    with pytest.raises(ValueError, match="max_over_mean must be at least 1"):
        HomeStrategy(max_over_mean=0.9)


def test_a_placement_prints_in_one_line() -> None:
    text = repr(HopGnnStrategy().place(Seeds(PAPER_HOMES[PAPER_ROOTS], 2)))
    assert text == "Placement(models=int32[4], times=int32[4], paths=int32[2, 2])"
