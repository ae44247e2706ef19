"""A policy in the loop of a simulated run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision
from hyrt_perfmodel.prediction.simulate import simulate
from hyrt_perfmodel.prediction.stage_times import stage_times
from simulated_machines import machine, start, training

EVEN = start(1000, 1000, 1000, 1000)


class Scripted:
    """Decides what a function of the step and the present assignment says, and keeps what it was told."""

    name = "scripted"
    description = "for tests"

    def __init__(
        self, after: Callable[[int, Assignment], Assignment] = lambda step, present: present
    ) -> None:
        self._after = after
        self.told = []

    def decide(self, history, present, limits):
        self.told.append((history, present, limits))
        after = self._after(history[-1].step, present)
        return Decision(assignment=after, reason=f"step {history[-1].step}")


def moved(present: Assignment, amount: int) -> Assignment:
    first, second, *others = present.split
    return replace(present, split=(first - amount, second + amount, *others))


@pytest.mark.parametrize("cores", [None, 16])
@pytest.mark.parametrize("depth", [1, 3, 4, 7])
def test_a_decision_acts_on_the_first_step_that_is_not_sampled(depth, cores):
    policy = Scripted(lambda step, present: moved(present, 1))
    run = simulate(
        machine(host={"cores": cores}), training(), start=EVEN, policy=policy, iterations=40, depth=depth
    )
    for step, assignment in enumerate(run.assignments):
        assert assignment == moved(EVEN, max(0, step - depth + 1))
    assert [step for step, _ in run.decisions] == list(range(40 - depth))
    for step, decision in run.decisions:
        acts_on = step + depth
        assert run.assignments[acts_on] == decision.assignment
        # The step before it was begun when the decision was made, or could have been: it is the first that
        # was not.
        assert run.started_s[acts_on] >= run.done_s[step]
    # Steps run under the split that they were sampled with.
    times = stage_times(machine(host={"cores": cores}), training(), run.assignments[-1])
    assert run.trainer_propagate_s[-1, 1] == pytest.approx(times.trainer_propagate_s[1])


def test_a_policy_is_told_what_was_measured():
    policy = Scripted(lambda step, present: moved(present, 5) if step == 10 else present)
    run = simulate(machine(), training(), start=EVEN, policy=policy, iterations=120, noise=0.1, seed=5)
    assert len(policy.told) == 116
    for step, (history, present, limits) in enumerate(policy.told):
        assert [seen.step for seen in history] == list(range(max(0, step - 63), step + 1))
        last = history[-1]
        assert last.assignment == run.assignments[step]
        assert present == (moved(EVEN, 5) if step > 10 else EVEN)
        assert last.iteration_s == pytest.approx(run.iteration_s[step])
        assert sum(last.sample_s) == run.stage_s["sample"][step]
        assert sum(last.load_s) == run.stage_s["load"][step]
        assert last.synchronize_s == run.stage_s["synchronize"][step]
        assert last.transfer_s == tuple(run.trainer_transfer_s[step])
        assert last.propagate_s == tuple(run.trainer_propagate_s[step])
        assert last.sample_on_device_s == (0.0,) * 4
        expected = stage_times(machine(), training(), last.assignment).trainer_load_s
        assert np.divide(last.load_s, sum(last.load_s)) == pytest.approx(np.divide(expected, sum(expected)))
        assert limits == AssignmentLimits(
            trainers=("cpu:0", "gpu:0", "gpu:1", "gpu:2"),
            is_host=(True, False, False, False),
            max_units=(4000,) * 4,
            cores=16,
            delay=4,
        )
    assert [step for step, _ in run.decisions] == [10]


def test_work_is_told_and_not_waiting():
    # Loading is the bottleneck: the trainers wait for it, and what they are seen to take stays as it is.
    platform = machine(host={"memory_gb_s": 2})
    policy = Scripted()
    simulate(platform, training(), start=start(0, 2000, 1000, 1000), policy=policy, iterations=30)
    seen = policy.told[-1][0][-1]
    times = stage_times(platform, training(), start(0, 2000, 1000, 1000))
    assert seen.propagate_s == pytest.approx(times.trainer_propagate_s)
    assert seen.iteration_s == pytest.approx(sum(seen.load_s))
    assert seen.iteration_s > 2 * max(seen.propagate_s)
    assert seen.propagate_s[0] == seen.transfer_s[0] == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40))
def test_moves_keep_noise_and_both_ways_to_run_agree(seed, depth, every):
    def run(host: dict):
        policy = Scripted(lambda step, present: moved(present, 7) if step % every == 0 else present)
        return simulate(
            machine(host=host),
            training(),
            start=EVEN,
            policy=policy,
            iterations=60,
            depth=depth,
            noise=0.2,
            seed=seed,
        )

    # With a policy and cores the events are gone through; a bandwidth nobody reaches changes nothing.
    recurrence, events = run({}), run({"shared_memory_gb_s": 1e9})
    assert (recurrence.done_s == events.done_s).all()
    assert recurrence.assignments == events.assignments
    assert recurrence.trainer_propagate_s == pytest.approx(events.trainer_propagate_s)


def test_given_limits_are_told_with_the_depth_for_their_delay():
    limits = AssignmentLimits(
        trainers=("a", "b", "c", "d"),
        is_host=(True, False, False, False),
        max_units=(9,) * 4,
        cores=64,
        delay=99,
    )
    policy = Scripted()
    simulate(machine(), training(), start=EVEN, policy=policy, iterations=9, depth=3, limits=limits)
    assert policy.told[0][2] == replace(limits, delay=3)


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (replace(EVEN, split=(1000, 1000, 1000, 1001)), "4000 units for 4 trainers"),
        (replace(EVEN, split=(2000, 2000)), "4000 units for 4 trainers"),
        (start(1000, 1000, 1000, 1000, sample=9), "limits"),
        (start(0, 1000, 1000, 2000), "limits"),
    ],
)
def test_a_decision_outside_the_limits_is_refused(after, text):
    limits = AssignmentLimits(
        trainers=("a", "b", "c", "d"),
        is_host=(True, False, False, False),
        max_units=(1999,) * 4,
        cores=16,
        delay=4,
    )
    policy = Scripted(lambda step, present: after if step == 2 else present)
    with pytest.raises(ValueError, match=f"policy scripted .* at step 2.*{text}"):
        simulate(machine(), training(), start=EVEN, policy=policy, iterations=20, limits=limits)
