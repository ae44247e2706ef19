"""Simulated runs of described machines, against the model's closed form and what was asked for."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.platform import Host
from hyrt_perfmodel.prediction.simulate import Perturbation, simulate
from hyrt_perfmodel.prediction.stage_times import iteration_s, stage_times
from hyrt_perfmodel.prediction.stages import PAPER_TERMS
from hyrt_perfmodel.prediction.step_profile import step_profile
from simulated_machines import machine, machines, start, training


@settings(max_examples=60, deadline=None)
@given(machines(), st.integers(4, 8))
def test_a_deep_pipeline_runs_at_the_pace_of_its_slowest_stage(case, depth):
    platform, work, assignment = case
    times = stage_times(platform, work, assignment, PAPER_TERMS)
    slowest = max(times.stages_s.values())
    run = simulate(platform, work, start=assignment, iterations=60, depth=depth, terms=PAPER_TERMS)
    assert slowest == pytest.approx(iteration_s(times, platform.host, PAPER_TERMS))
    # The first step goes through every stage; each further one costs the slowest stage, and no less.
    steps = np.arange(60)
    assert (run.done_s <= (sum(times.stages_s.values()) + steps * slowest) * (1 + 1e-9)).all()
    assert (run.done_s >= (steps + 1) * slowest * (1 - 1e-9)).all()


@settings(max_examples=30, deadline=None)
@given(machines(), st.integers(1, 6), st.floats(0, 0.3))
def test_steps_are_in_order_and_no_more_in_flight_than_there_are_credits(case, depth, noise):
    platform, work, assignment = case
    run = simulate(platform, work, start=assignment, iterations=40, depth=depth, noise=noise)
    assert (np.diff(run.started_s) >= 0).all()
    assert (np.diff(run.done_s) > 0).all()
    assert (run.started_s[depth:] >= run.done_s[:-depth]).all()
    assert run.iteration_s.sum() == pytest.approx(run.done_s[-1])


def test_one_step_at_a_time_takes_the_sum_of_the_stages():
    work, assignment = training(1000), start(0, 1000)
    platform = machine(1)
    times = stage_times(platform, work, assignment)
    run = simulate(platform, work, start=assignment, iterations=5, depth=1)
    assert run.iteration_s == pytest.approx([sum(times.stages_s.values())] * 5)
    assert {stage: seconds[0] for stage, seconds in run.stage_s.items()} == pytest.approx(
        {
            **times.stages_s,
            "propagate": times.propagate_s - times.synchronize_s,
            "synchronize": times.synchronize_s,
        }
    )


def test_the_stages_are_those_of_the_model_for_any_number_of_accelerators():
    for count in (1, 2, 4, 8, 16):
        platform, split = machine(count), (500,) * (count + 1)
        work, assignment = training(sum(split)), start(*split)
        times = stage_times(platform, work, assignment)
        run = simulate(platform, work, start=assignment, iterations=400)
        assert run.trainer_propagate_s.shape == (400, count + 1)
        assert run.trainer_propagate_s[7] == pytest.approx(times.trainer_propagate_s)
        assert run.trainer_transfer_s[7] == pytest.approx(times.trainer_transfer_s)
        assert run.stage_s["load"][7] == pytest.approx(times.load_s)
        assert run.settled_iteration_s() == pytest.approx(iteration_s(times, platform.host), rel=1e-6)


def test_equal_seeds_give_equal_runs():
    def run(seed: int, noise: float = 0.05) -> np.ndarray:
        return simulate(
            machine(), training(), start=start(1000, 1000, 1000, 1000), iterations=50, noise=noise, seed=seed
        ).done_s

    assert (run(3) == run(3)).all()
    assert (run(3) != run(4)).all()
    assert (run(3, noise=0.0) == run(4, noise=0.0)).all()


def test_noise_has_the_asked_deviation_and_no_mean():
    run = simulate(machine(), training(), start=start(1000, 1000, 1000, 1000), iterations=5000, noise=0.1)
    exact = simulate(machine(), training(), start=start(1000, 1000, 1000, 1000), iterations=1)
    for name in ("trainer_propagate_s", "trainer_transfer_s"):
        ratio = getattr(run, name)[:, 1:] / getattr(exact, name)[:, 1:]
        assert np.log(ratio).std(axis=0) == pytest.approx(0.1, rel=0.05)
        assert ratio.mean(axis=0) == pytest.approx(1.0, abs=0.01)
    for stage in ("sample", "load", "synchronize"):
        ratio = run.stage_s[stage] / exact.stage_s[stage]
        assert np.log(ratio).std() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        (2, {"trainer_propagate_s": 2}),
        ("links", {"transfer": None}),
        ("sample", {"sample": None}),
        ("host_memory", {"load": None}),
    ],
)
def test_a_part_that_halves_its_speed_takes_twice_as_long(part, changes):
    def times(*happens: Perturbation) -> dict[str, np.ndarray]:
        run = simulate(
            machine(host={"trains": False}),
            training(3000),
            start=start(1000, 1000, 1000),
            iterations=60,
            changes=happens,
        )
        return {**run.stage_s, "trainer_propagate_s": run.trainer_propagate_s}

    before = times()
    after = times(
        Perturbation(step=30, trainer=part, factor=1), Perturbation(step=20, trainer=part, factor=0.5)
    )
    for name, seconds in before.items():
        expected = seconds.copy()
        if name in changes:
            column = changes[name]
            expected[20:30, ... if column is None else column] *= 2
        elif name == "propagate" and part == 2:
            expected[20:30] *= 2
        assert after[name] == pytest.approx(expected, rel=1e-9), name


def test_a_straggler_that_wanders():
    changes = [Perturbation(step=10 * i, trainer=1 + i % 3, factor=0.25) for i in range(1, 5)]
    changes += [Perturbation(step=10 * i + 10, trainer=1 + i % 3, factor=1.0) for i in range(1, 5)]
    run = simulate(machine(), training(), start=start(1000, 1000, 1000, 1000), iterations=60, changes=changes)
    usual = run.trainer_propagate_s[0, 1]
    slow = run.trainer_propagate_s[:, 1:] > 3 * usual
    assert [tuple(np.flatnonzero(row)) for row in slow[::10]] == [(), (1,), (2,), (0,), (1,), ()]


def test_slower_host_memory_slows_a_trainer_on_the_host_too():
    def seconds(host: dict, *changes: Perturbation) -> tuple[float, float]:
        run = simulate(
            machine(1, host=host), training(), start=start(2000, 2000), iterations=1, changes=changes
        )
        return run.trainer_propagate_s[0, 0], run.stage_s["load"][0]

    changed = seconds({"memory_gb_s": 100}, Perturbation(step=0, trainer="host_memory", factor=0.5))
    assert changed == pytest.approx(seconds({"memory_gb_s": 50}))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"iterations": 0}, "iterations"),
        ({"depth": 0}, "depth"),
        ({"noise": -0.1}, "noise"),
        ({"noise": float("nan")}, "noise"),
        ({"start": start(1, 2)}, "split has 2 parts, expected one for each of the 4"),
        ({"changes": [Perturbation(step=3, trainer=4, factor=1)]}, "trainer must be from 0 to 3"),
    ],
)
def test_what_cannot_be_simulated_is_said(wrong, text):
    settings = {"start": start(1000, 1000, 1000, 1000), "iterations": 3, **wrong}
    with pytest.raises(ValueError, match=text):
        simulate(machine(), training(), **settings)


@pytest.mark.parametrize(
    "wrong", [{"factor": 0}, {"factor": float("nan")}, {"step": -1}, {"trainer": "fpga"}]
)
def test_a_change_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="change"):
        Perturbation(**{"step": 0, "trainer": 0, "factor": 1.0, **wrong})


def test_settled_steps_that_are_not_there():
    run = simulate(machine(), training(), start=start(1000, 1000, 1000, 1000), iterations=10)
    assert run.settled_iteration_s(0, 10) == pytest.approx(run.done_s[-1] / 10)
    assert run.settled_iteration_s(4, 5) == pytest.approx(run.iteration_s[4])
    with pytest.raises(ValueError, match="does not include steps 8 to 10"):
        run.settled_iteration_s(8, 11)


def test_what_a_step_asks_of_the_shared_resources():
    platform = machine(
        2, host={"cores": 16, "shared_memory_gb_s": 120, "serial_part": 0.1}, accelerator={"switch_gb_s": 16}
    )
    work, assignment = training(3000), start(1000, 1000, 1000, sample=6, load=5, train=5)
    profile = step_profile(platform, work, PAPER_TERMS, assignment)
    sample, load, *others = profile.demands
    # Without the cores' term they are no limit.
    assert profile.capacities == (float("inf"), 120e9, 16e9)
    assert sample == (6, 0, 0)
    assert load == pytest.approx((5, 100e9, 0))
    on_host, first, second, host_trainer, *accelerators, synchronize = others
    assert on_host == (0, 0, 0)
    assert first == second == pytest.approx((0, 12e9, 12e9))
    # All edges' rows forward, those of the second layer backward too, over the time that the trainer takes.
    read = (250_000 * 100 + 2 * 25_000 * 256) * 4
    seconds = stage_times(platform, work, assignment, PAPER_TERMS).trainer_propagate_s[0]
    assert host_trainer == pytest.approx((1 / (0.1 + 0.9 / 5), read / seconds, 0))
    assert accelerators == [(0, 0, 0)] * 2
    assert synchronize == (1, 0, 0)


@pytest.mark.parametrize("shared", [None, 60.0])
def test_ten_thousand_steps_in_seconds(shared):
    platform = machine(3, host={"cores": 64, "shared_memory_gb_s": shared})
    began = time.perf_counter()
    run = simulate(platform, training(), start=start(1000, 1000, 1000, 1000), iterations=10_000, noise=0.05)
    assert time.perf_counter() - began < 5
    assert len(run.iteration_s) == 10_000


def test_it_imports_little():
    code = (
        "import sys, hyrt_perfmodel.prediction.simulate; "
        "print({'torch', 'numba', 'hyrt', 'scipy'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_nothing_is_shared_where_the_platform_says_nothing():
    assert Host(memory_gb_s=1, macs_per_s=1).shared_memory_gb_s is None
    with pytest.raises(ValueError, match="shared_memory_gb_s"):
        Host(memory_gb_s=1, macs_per_s=1, shared_memory_gb_s=0)
