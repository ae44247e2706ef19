"""The policy `bottleneck` against HyScale-GNN's table, written down here once more."""

from __future__ import annotations

import itertools

import pytest
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Observation, Threads

from hyrt.balance.bottleneck_policy import BottleneckPolicy, choose_action, task_times

TASKS = ("T_SC", "T_SA", "T_L", "T_TC", "T_accel")
SAMPLERS, TRAINERS = ("work", "samplers"), ("work", "trainers")

# bottleneck, fastest, second fastest (None: any), action.
TABLE = [
    ("T_SA", None, None, SAMPLERS),
    ("T_accel", None, None, TRAINERS),
    ("T_L", None, None, ("thread", "load")),
    ("T_SC", "T_SA", None, SAMPLERS),
    ("T_SC", "T_accel", "T_SA", SAMPLERS),
    ("T_SC", "T_accel", "T_L", ("thread", "sample")),
    ("T_SC", "T_accel", "T_TC", ("thread", "sample")),
    ("T_SC", "T_L", None, ("thread", "sample")),
    ("T_SC", "T_TC", None, ("thread", "sample")),
    ("T_TC", "T_accel", None, TRAINERS),
    ("T_TC", "T_SA", "T_accel", TRAINERS),
    ("T_TC", "T_SA", "T_L", ("thread", "train")),
    ("T_TC", "T_SA", "T_SC", ("thread", "train")),
    ("T_TC", "T_L", None, ("thread", "train")),
    ("T_TC", "T_SC", None, ("thread", "train")),
]


@pytest.mark.parametrize(("bottleneck", "fastest", "second", "action"), TABLE)
def test_each_row_of_the_table(bottleneck, fastest, second, action) -> None:
    orders = [
        order
        for order in itertools.permutations(TASKS)
        if order[-1] == bottleneck
        and (fastest is None or order[0] == fastest)
        and (second is None or order[1] == second)
    ]
    assert orders
    for order in orders:
        tasks = {task: 1.0 + order.index(task) for task in TASKS}
        assert choose_action(tasks) == action


def test_the_rows_cover_every_order() -> None:
    for order in itertools.permutations(TASKS):
        rows = [
            row
            for row in TABLE
            if row[0] == order[-1] and row[1] in (None, order[0]) and row[2] in (None, order[1])
        ]
        assert len({row[3] for row in rows}) == 1, order


LIMITS = AssignmentLimits(
    trainers=("cpu:0", "cuda:0", "cuda:1"),
    is_host=(True, False, False),
    max_units=(1000, 1000, 1000),
    cores=12,
    delay=4,
    samples_on_device=(False, False, True),
)
PRESENT = Assignment(split=(400, 300, 300), threads=Threads(sample=4, load=4, train=4))


def observed(
    *, sample=0.010, load=0.010, on_device=0.010, transfer=(0.0, 0.01, 0.01), propagate=(0.01, 0.01, 0.01)
) -> Observation:
    return Observation(
        step=9,
        assignment=PRESENT,
        iteration_s=0.05,
        # Most of it is of the first two; the last samples for itself.
        sample_s=(0.25 * sample, 0.75 * sample, 0.0),
        load_s=(0.5 * load, 0.25 * load, 0.25 * load),
        sample_on_device_s=(0.0, 0.0, on_device),
        transfer_s=transfer,
        propagate_s=propagate,
    )


def decided(observation: Observation, limits: AssignmentLimits = LIMITS) -> Assignment:
    decision = BottleneckPolicy().decide([observation], PRESENT, limits)
    assert sum(decision.assignment.split) == sum(PRESENT.split)
    assert limits.allows(decision.assignment)
    assert bool(decision.reason) == (decision.assignment != PRESENT)
    return decision.assignment


def test_tasks_are_those_of_the_machine() -> None:
    times = observed(transfer=(0.0, 0.02, 0.01), propagate=(0.005, 0.01, 0.015))
    assert task_times(times, LIMITS) == {
        "T_SC": 0.010,
        "T_SA": 0.010,
        "T_L": 0.010,
        "T_TC": 0.005,
        "T_accel": 0.02,
    }
    alone = AssignmentLimits(trainers=("cuda:0",), is_host=(False,), max_units=(9,), cores=2, delay=4)
    one = Observation(
        step=0,
        assignment=PRESENT,
        iteration_s=1.0,
        sample_s=(0.1,),
        load_s=(0.2,),
        sample_on_device_s=(0.0,),
        transfer_s=(0.3,),
        propagate_s=(0.4,),
    )
    assert list(task_times(one, alone)) == ["T_SC", "T_L", "T_accel"]


def test_a_slow_accelerator_gives_the_cpu_half_of_what_would_make_them_equal() -> None:
    # 30 ms for 300 targets and 10 ms for 400: x with 0.1 (300 - x) = 0.025 (400 + x) is 160.
    after = decided(observed(propagate=(0.010, 0.030, 0.012)))
    assert after.split == (480, 220, 300)
    assert after.threads == PRESENT.threads


def test_a_slow_cpu_trainer_gives_the_fastest_accelerator() -> None:
    after = decided(
        observed(
            sample=0.02,
            load=0.02,
            on_device=0.02,
            transfer=(0.0, 0.005, 0.004),
            propagate=(0.04, 0.008, 0.004),
        )
    )
    assert after.split[1] == 300
    assert after.split[2] > 300


def test_a_slow_loader_gets_a_thread_and_no_targets_move() -> None:
    after = decided(observed(load=0.05, sample=0.002))
    assert after.split == PRESENT.split
    assert after.threads == Threads(sample=3, load=5, train=4)


def test_a_slow_cpu_trainer_gets_a_thread_where_loading_is_fastest() -> None:
    after = decided(observed(load=0.001, propagate=(0.05, 0.01, 0.01)))
    assert after.threads == Threads(sample=4, load=3, train=5)


def test_sampling_moves_between_the_cpu_and_devices_that_sample() -> None:
    slow_device = decided(observed(on_device=0.05))
    assert slow_device.split[2] < 300
    slow_host = decided(observed(sample=0.05, on_device=0.001))
    assert slow_host.split[2] > 300


def test_no_trainer_gets_more_than_it_holds() -> None:
    full = AssignmentLimits(
        trainers=LIMITS.trainers,
        is_host=LIMITS.is_host,
        max_units=(420, 300, 310),
        cores=12,
        delay=4,
        samples_on_device=LIMITS.samples_on_device,
    )
    after = decided(observed(propagate=(0.001, 0.05, 0.012)), full)
    assert after.split == (420, 280, 300)


def test_it_waits_for_the_first_step_under_its_decision() -> None:
    other = Assignment(split=(500, 250, 250), threads=PRESENT.threads)
    decision = BottleneckPolicy().decide([observed(load=0.05)], other, LIMITS)
    assert decision.assignment == other


def test_a_thread_comes_from_the_fastest_task_that_has_two() -> None:
    present = Assignment(split=PRESENT.split, threads=Threads(sample=1, load=4, train=7))
    observation = Observation(
        step=0,
        assignment=present,
        iteration_s=0.05,
        sample_s=(0.0005, 0.0005),
        load_s=(0.025, 0.025),
        sample_on_device_s=(0.0, 0.0, 0.0),
        transfer_s=(0.0, 0.01, 0.01),
        propagate_s=(0.02, 0.01, 0.01),
    )
    decision = BottleneckPolicy().decide([observation], present, LIMITS)
    assert decision.assignment.threads == Threads(sample=1, load=5, train=6)
    assert "1 thread train → load" in decision.reason
    assert "load 50 ms" in decision.reason
