"""Both ways to work out when stages end, against schedules by hand and by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.prediction.simulate import run_events, run_recurrence
from hyrt_perfmodel.prediction.step_profile import SimulatedStep, StepProfile
from pipeline_by_ticks import done_by_ticks

ENGINES = [run_recurrence, run_events]


def profile(trainers, demands=None, capacity=1.0):
    rows = demands or [0.0] * (2 * trainers + 3)
    zeros = (0.0,) * trainers
    return StepProfile(zeros, zeros, zeros, zeros, 0.0, tuple((row,) for row in rows), (capacity,))


def run(engine, steps, depth, demands=None, capacity=1.0):
    """The steps as they were run; steps: [(sample, load, transfer, propagate, synchronize)]."""
    trainers = len(steps[0][0])
    kind = profile(trainers, demands, capacity)
    begun, ended = [], []

    def begin(number):
        assert number == len(begun)
        assert number < len(ended) + depth
        begun.append(number)
        sample, load, transfer, propagate, synchronize = steps[number]
        return SimulatedStep(
            number, None, kind, list(sample), list(load), list(transfer), list(propagate), synchronize
        )

    engine(len(steps), trainers, depth, begin, ended.append)
    assert [step.step for step in ended] == list(range(len(steps)))
    return ended


@pytest.mark.parametrize("engine", ENGINES)
def test_one_trainer_by_hand(engine):
    steps = [([1], [2], [3], [4], 1)] * 4
    # The first step: 1 + 2 + 3 + 4 + 1. Then propagation and synchronization, 5, never wait for anything.
    assert [step.done_s for step in run(engine, steps, 4)] == [11, 16, 21, 26]
    # Two in flight: step 2 is sampled at 11, staged at 17, propagated from 17 on.
    two = run(engine, steps, 2)
    assert [step.done_s for step in two] == [11, 16, 22, 27]
    assert [step.started_s for step in two] == [0, 1, 11, 16]
    # One in flight: nothing overlaps.
    assert [step.done_s for step in run(engine, steps, 1)] == [11, 22, 33, 44]


@pytest.mark.parametrize("engine", ENGINES)
def test_shares_of_two_trainers_by_hand(engine):
    # Sampled at 1 and 3, loaded at 4 and 8; the first trainer is through at 4 + 2 + 9 = 15, the second at 8 +
    # 5 + 1 = 14.
    assert run(engine, [([1, 2], [3, 4], [2, 5], [9, 1], 2)], 1)[0].done_s == 17
    # Nothing of a step for a trainer costs nothing.
    assert run(engine, [([1, 0], [3, 0], [2, 0], [9, 0], 2)], 1)[0].done_s == 17


@pytest.mark.parametrize("engine", ENGINES)
def test_propagation_waits_for_the_weights_of_the_slowest_trainer(engine):
    steps = [([0, 0], [0, 0], [0, 0], [1, 7], 2)] * 3
    assert [step.done_s for step in run(engine, steps, 4)] == [9, 18, 27]


TICKS = st.integers(0, 6)


@st.composite
def schedules(draw):
    trainers = draw(st.integers(1, 3))
    stage = st.lists(TICKS, min_size=trainers, max_size=trainers)
    return draw(st.lists(st.tuples(stage, stage, stage, stage, TICKS), min_size=1, max_size=8))


@settings(max_examples=100, deadline=None)
@given(schedules(), st.integers(1, 6))
def test_any_schedule_is_that_of_brute_force(steps, depth):
    expected = done_by_ticks(steps, depth)
    recurrence, events = run(run_recurrence, steps, depth), run(run_events, steps, depth)
    assert [step.done_s for step in recurrence] == expected
    assert [step.done_s for step in events] == expected
    for one, other in zip(recurrence, events, strict=True):
        assert one.started_s == other.started_s
        for stage in ("sample_s", "load_s", "transfer_s", "propagate_s", "synchronize_s"):
            assert getattr(one, stage) == getattr(other, stage)


@settings(max_examples=15, deadline=None)
@given(
    schedules().map(lambda steps: steps[:4]),
    st.integers(1, 4),
    st.fixed_dictionaries(
        {stage: st.integers(0, 3) for stage in ("sample", "load", "transfer", "propagate", "synchronize")}
    ),
)
def test_what_shares_a_resource_slows_as_in_brute_force(steps, depth, demands):
    trainers = len(steps[0][0])
    rows = [demands["sample"], demands["load"]]
    rows += [demands["transfer"]] * trainers + [demands["propagate"]] * trainers + [demands["synchronize"]]
    expected = done_by_ticks(steps, depth, demands=demands, capacity=3, per_tick=60)
    found = [step.done_s for step in run(run_events, steps, depth, rows, 3.0)]
    # Each of a step's jobs ends up to a sixtieth of a tick late by brute force.
    late = (4 * trainers + 1) / 60
    assert found == pytest.approx(expected, abs=late * len(steps))


def test_two_that_share_by_hand():
    # Sampling needs 2 of 3 and loading 2 of 3: together each runs at 3/4.
    steps = [([6], [3], [0], [0], 0)] * 2
    ended = run(run_events, steps, 4, [2, 2, 0, 0, 0], 3.0)
    # Sampled at 6; then both: loading takes 4 and is through at 10, sampling has done 3 of 6 and ends at 13.
    assert [step.done_s for step in ended] == [10, 16]
    assert ended[0].load_s == [4]
    assert ended[1].sample_s == [7]
    assert ended[1].load_s == [3]
