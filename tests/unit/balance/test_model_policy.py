"""The policies in simulated runs: what they reach, that they come to rest, and what does not mislead them."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Observation, Threads
from hyrt_perfmodel.prediction.simulate import Perturbation, Simulation, simulate
from hyrt_perfmodel.prediction.stage_times import iteration_s, stage_times
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

from hyrt.balance.explore import probe
from hyrt.balance.model_policy import ModelPolicy
from hyrt.balance.registry import DEFAULT_POLICY, POLICIES, create_policy

HOST = Host(
    memory_gb_s=100,
    macs_per_s=1e11,
    cores=16,
    thread_load_gb_s=4,
    thread_edges_per_s=1e7,
    launch_s=5e-4,
    step_s=5e-4,
)
GPU = Accelerator(kind="gpu", memory_gb_s=60, macs_per_s=5e11, link_gb_s=10, launch_s=1e-3, count=2)
PLATFORM = Platform(name="two gpus", host=HOST, accelerators=(GPU,))
TRAINING = TrainingWorkload(
    at=proportional_workload(
        Workload(
            vertices=(120e3, 11e3, 1024),
            edges=(110e3, 10e3),
            features=(128, 256, 47),
            concat=True,
        ),
        1024,
    ),
    targets_per_epoch=200_000,
    batch_size=2048,
)
START = Assignment(split=(1448, 300, 300), threads=Threads(sample=10, load=2, train=4))
LIMITS = AssignmentLimits(
    trainers=("cpu:0", "gpu:0", "gpu:1"),
    is_host=(True, False, False),
    max_units=(2048, 2048, 2048),
    cores=16,
    delay=4,
)


def simulated(
    name: str, *, steps: int = 120, changes: tuple[Perturbation, ...] = (), seed: int = 1
) -> Simulation:
    return simulate(
        PLATFORM,
        TRAINING,
        start=START,
        policy=create_policy(name),
        iterations=steps,
        noise=0.05,
        seed=seed,
        limits=LIMITS,
        changes=changes,
    )


def seconds(assignment: Assignment, slow: int | None = None) -> float:
    """The iteration without noise; a trainer may take twice as long."""
    times = stage_times(PLATFORM, TRAINING, assignment)
    if slow is not None:
        propagate = list(times.trainer_propagate_s)
        propagate[slow] *= 2
        times = replace(times, propagate_s=max(propagate) + times.synchronize_s)
    return iteration_s(times, HOST)


def best_s(slow: int | None = None) -> float:
    """By brute force: steps of 1/64 of the targets, all threads."""
    return min(
        seconds(
            Assignment(
                split=(cpu, gpu, 2048 - cpu - gpu),
                threads=Threads(sample=sample, load=load, train=16 - sample - load),
            ),
            slow,
        )
        for cpu in range(0, 1025, 64)
        for gpu in range(512, 2049 - cpu, 64)
        for sample in range(1, 8)
        for load in range(2, 15 - sample, 2)
    )


def moved(before: Assignment, after: Assignment) -> float:
    return sum(abs(a - b) for a, b in zip(before.split, after.split, strict=True)) / 2 / sum(before.split)


def test_model_is_near_the_best_within_30_steps_and_rests_there() -> None:
    best = best_s()
    for seed in range(5):
        run = simulated("model", seed=seed)
        assert seconds(START) > 1.5 * best
        assert seconds(run.assignments[30]) < best / 0.95
        assert all(moved(run.assignments[30], later) < 0.05 for later in run.assignments[30:])


def test_model_recovers_within_40_steps_where_a_device_halves_its_speed() -> None:
    best = best_s(slow=1)
    run = simulated("model", steps=110, changes=(Perturbation(step=60, trainer=1, factor=0.5),))
    assert seconds(run.assignments[60], slow=1) > 1.15 * best
    assert seconds(run.assignments[100], slow=1) < best / 0.93


def test_a_trainer_that_is_measured_gets_no_more_than_its_memory_holds() -> None:
    # It has a few targets already: what it is given on top must fit beside them.
    present = Assignment(split=(1500, 468, 80), threads=START.threads)
    limits = replace(LIMITS, trainers=("cpu:0", "gpu:0", "fpga:0"), max_units=(2048, 2048, 200))
    step = Observation(
        step=0,
        assignment=present,
        iteration_s=0.05,
        sample_s=(0.01, 0.0, 0.0),
        load_s=(0.01, 0.0, 0.0),
        sample_on_device_s=(0.0, 0.0, 0.0),
        transfer_s=(0.0, 0.01, 0.01),
        propagate_s=(0.05, 0.05, 0.01),
    )
    found = probe([replace(step, step=number) for number in range(10)], present, limits, is_start=True)
    assert found is not None
    assert found.assignment.split == (1380, 468, 200)


def test_static_changes_nothing() -> None:
    run = simulated("static")
    assert set(run.assignments) == {START}
    assert not run.decisions


def test_every_decision_has_its_reason_with_figures() -> None:
    for name in ("bottleneck", "model"):
        run = simulated(name)
        assert run.decisions
        for _, decision in run.decisions:
            assert " ms" in decision.reason
            assert "→" in decision.reason
            assert "\n" not in decision.reason
    _, first = simulated("model").decisions[0]
    assert first.expected_s is not None
    assert f"; a step should take {first.expected_s * 1e3:.3g} ms" in first.reason


def test_equal_histories_give_equal_decisions() -> None:
    first, second = simulated("model"), simulated("model")
    assert first.decisions == second.decisions


def test_a_slow_loader_is_not_taken_for_a_slow_device() -> None:
    # One thread loads: all trainers wait, but what they work is short, so threads move and hardly a target.
    start = Assignment(split=(200, 924, 924), threads=Threads(sample=11, load=1, train=4))
    run = simulate(
        PLATFORM,
        TRAINING,
        start=start,
        policy=ModelPolicy(),
        iterations=30,
        noise=0.05,
        seed=3,
        limits=LIMITS,
    )
    _, first = run.decisions[0]
    assert first.assignment.threads.load > 2
    assert moved(start, first.assignment) < 0.1
    assert seconds(run.assignments[-1]) < seconds(start) / 2


def test_a_straggler_that_wanders_does_not_make_the_split_oscillate() -> None:
    # Every 8 steps another of the devices is half as fast.
    changes = []
    for turn in range(24):
        for trainer in (0, 1, 2):
            factor = 0.5 if turn % 3 == trainer else 1.0
            changes.append(Perturbation(step=60 + 8 * turn, trainer=trainer, factor=factor))
    run = simulated("model", steps=252, changes=tuple(changes))
    decided = [step for step, _ in run.decisions if step >= 90]
    assert len(decided) <= 4
    total = sum(moved(a, b) for a, b in zip(run.assignments[90:], run.assignments[91:], strict=False))
    assert total < 0.5


def test_an_expensive_trainer_gets_nothing() -> None:
    slow = Accelerator(kind="slow", memory_gb_s=50, macs_per_s=1e11, link_gb_s=1, launch_s=0.2)
    platform = Platform(name="one is useless", host=HOST, accelerators=(GPU, slow))
    start = Assignment(split=(448, 600, 600, 400), threads=Threads(sample=4, load=8, train=4))
    run = simulate(platform, TRAINING, start=start, policy=ModelPolicy(), iterations=40, noise=0.05, seed=5)
    assert run.assignments[-1].split[3] == 0


def test_a_trainer_without_targets_is_tried_again_seldom_and_cheaply() -> None:
    present = Assignment(split=(1024, 1024, 0), threads=START.threads)
    times = stage_times(PLATFORM, TRAINING, present)

    def history(last: int) -> list[Observation]:
        return [
            Observation(
                step=step,
                assignment=present,
                iteration_s=0.03,
                sample_s=tuple(times.sample_s * units / 2048 for units in present.split),
                load_s=times.trainer_load_s,
                sample_on_device_s=(0.0, 0.0, 0.0),
                transfer_s=times.trainer_transfer_s,
                propagate_s=times.trainer_propagate_s,
                synchronize_s=times.synchronize_s,
            )
            for step in range(last - 63, last + 1)
        ]

    tried = [
        last
        for last in range(900, 3100)
        if ModelPolicy().decide(history(last), present, LIMITS).assignment.split[2]
    ]
    assert tried == [1000, 2000, 3000]
    given = ModelPolicy().decide(history(1000), present, LIMITS)
    assert 0 < given.assignment.split[2] <= 2048 // 32
    assert "gpu:1" in given.reason
    lost = replace(LIMITS, max_units=(2048, 2048, 0))
    assert ModelPolicy().decide(history(1000), present, lost).assignment.split[2] == 0


def test_a_trainer_that_starts_without_targets_is_not_tried_in_a_short_run() -> None:
    slow = Accelerator(kind="slow", memory_gb_s=50, macs_per_s=1e11, link_gb_s=1, launch_s=2e-2)
    platform = Platform(name="one unknown", host=HOST, accelerators=(GPU, slow))
    start = Assignment(split=(448, 800, 800, 0), threads=Threads(sample=4, load=8, train=4))
    run = simulate(platform, TRAINING, start=start, policy=ModelPolicy(), iterations=40, noise=0.05, seed=5)
    tried = [step for step, assignment in enumerate(run.assignments) if assignment.split[3]]
    assert 10 <= tried[0] < 20


def test_a_settled_policy_looks_seldom_and_sees_a_change_all_the_same() -> None:
    run = simulated("model", steps=140, changes=(Perturbation(step=90, trainer=1, factor=0.5),))
    late = [step for step, _ in run.decisions if step >= 60]
    assert late
    assert 92 <= late[0] <= 100


def test_a_lost_trainers_targets_go_to_the_others() -> None:
    run = simulated("model", steps=40)
    last = run.assignments[-1]
    times = stage_times(PLATFORM, TRAINING, last)
    observation = Observation(
        step=40,
        assignment=last,
        iteration_s=0.03,
        sample_s=tuple(times.sample_s * units / 2048 for units in last.split),
        load_s=times.trainer_load_s,
        sample_on_device_s=(0.0, 0.0, 0.0),
        transfer_s=times.trainer_transfer_s,
        propagate_s=times.trainer_propagate_s,
        synchronize_s=times.synchronize_s,
    )
    lost = replace(LIMITS, max_units=(2048, 0, 2048))
    decision = ModelPolicy().decide([observation] * 3, last, lost)
    assert decision.assignment.split[1] == 0
    assert sum(decision.assignment.split) == 2048


def test_steps_that_take_no_time_change_nothing() -> None:
    nothing = Observation(
        step=3,
        assignment=START,
        iteration_s=0.0,
        sample_s=(0.0,) * 3,
        load_s=(0.0,) * 3,
        sample_on_device_s=(0.0,) * 3,
        transfer_s=(0.0,) * 3,
        propagate_s=(0.0,) * 3,
    )
    for name in POLICIES:
        assert create_policy(name).decide([nothing] * 5, START, LIMITS).assignment == START


@pytest.mark.parametrize("name", list(POLICIES))
def test_policies_are_found_by_name(name: str) -> None:
    found = create_policy(name)
    assert found.name == name
    assert found.description
    assert DEFAULT_POLICY in POLICIES


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'bottleneck'"):
        create_policy("bottelneck")


def test_a_decision_takes_less_than_a_millisecond() -> None:
    rng = np.random.default_rng(0)
    split = (400, 400, 400, 400, 448)
    limits = AssignmentLimits(
        trainers=("cpu:0", "a:0", "a:1", "b:0", "b:1"),
        is_host=(True, False, False, False, False),
        max_units=(2048,) * 5,
        cores=16,
        delay=4,
    )
    history = []
    # As in a run, the steps under one decision have the very same assignment.
    threads = Threads(sample=4, load=8, train=4)
    decided = [Assignment(split=tuple(np.roll(split, n).tolist()), threads=threads) for n in range(8)]
    for step in range(64):
        units = decided[step // 8].split
        history.append(
            Observation(
                step=step,
                assignment=decided[step // 8],
                iteration_s=0.03,
                sample_s=tuple(0.01 * count / 2048 for count in units),
                load_s=tuple(0.01 * count / 2048 * rng.uniform(0.95, 1.05) for count in units),
                sample_on_device_s=(0.0,) * 5,
                transfer_s=(0.0, *(1e-5 * count for count in units[1:])),
                propagate_s=tuple(2e-5 * count * rng.uniform(0.95, 1.05) for count in units),
                synchronize_s=0.001,
            )
        )
    took, unit = [math.inf], [math.inf]
    end = time.monotonic() + 10
    # Twice the 1 ms that it is to take: other work on the machine costs caches, for seconds at a time. Slower
    # machines take longer in proportion to plain work, which is measured in turn.
    while min(took) >= 2 * max(1e-3, min(unit)) and time.monotonic() < end:
        begun = time.thread_time()
        ModelPolicy().decide(history, history[-1].assignment, limits)
        took.append(time.thread_time() - begun)
        unit.append(_seconds_of_plain_work())
    assert min(took) < 2 * max(1e-3, min(unit))


def _seconds_of_plain_work() -> float:
    """CPU seconds of small arrays and plain Python, half each, that a server's core does in 1 ms (2026)."""
    rows = np.arange(152.0).reshape(8, 19)
    begun, total = time.thread_time(), 0.0
    for _ in range(250):
        ordered = np.sort(rows, axis=0)
        total += float((ordered[3] + ordered[4]).sum()) + sum(
            value * 0.5 for value in (1.0, 2.0, 3.0, 4.0) * 8
        )
    seconds = time.thread_time() - begun
    assert total == 250 * (float((rows[3] + rows[4]).sum()) + 40)
    return seconds


def test_policies_import_no_torch() -> None:
    code = (
        "import sys, hyrt.balance.registry; "
        "print([m for m in ('torch', 'numba', 'hyrt.config') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{root}:{root / 'perfmodel'}"},
    )
    assert result.stdout.strip() == "[]"


# Once left at 0.80 and 0.81: two devices behind one switch, where one that is left alone was judged while the
# other's transfers still came through; and loading that is much less work for one large share.
SHARED = [27183051, 27182920]


# What the model policy once left at 0.3 to 0.8 of the best: a trainer that needs nothing loaded; transfers
# that grow far slower than the targets; host memory, then a switch, that transfers share; a CPU trainer that
# starts with a few targets; sampling that gains nothing from threads, with cores shared and dealt out; a
# stage that gets too few of the shared cores; a fast trainer of a slow kind; trainers that mostly launch.
@pytest.mark.parametrize(
    "seed", [70096, 70081, 70027, 71234, 71189, 71090, 70068, 71019, 83046, 83218, 84062, *SHARED]
)
def test_machines_that_keep_something_back(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools" / "policies"))
    from compare import outcomes

    (found,) = outcomes(seed, ["model"])
    assert found.settled >= 0.85


def test_random_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of the cases of tools/policies/compare.py, which prints the figures of 500."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools" / "policies"))
    from compare import outcomes

    found = [outcome for seed in range(6) for outcome in outcomes(seed, ["static", "model"])]
    model = [outcome for outcome in found if outcome.policy == "model"]
    static = [outcome for outcome in found if outcome.policy == "static"]
    assert np.median([outcome.settled for outcome in model]) >= 0.97
    assert min(outcome.settled for outcome in model) >= 0.8
    assert np.median([outcome.recovered for outcome in model]) >= 0.93
    assert np.median([outcome.settled for outcome in static]) < 0.8
