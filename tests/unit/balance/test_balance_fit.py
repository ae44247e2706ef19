"""What the model policy makes of what it sees: evidence, curves and fits, against numbers that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Observation, Threads

from hyrt.balance.assignments import best_assignment, split_moves
from hyrt.balance.explore import (
    _by_size_alone,
    _fewer_train_threads,
    _larger_share,
    _launch_bound_devices,
    fewer_shares,
)
from hyrt.balance.fit import FittedStepModel, StageLine, fit_step_model
from hyrt.balance.stage_times import (
    FIRST_TRAINER,
    LOAD,
    HostStage,
    ShareGrowth,
    ThreadScaling,
    fit_host_stage,
    group_history,
    possible_growths,
)

THREADS = Threads(sample=2, load=2, train=4)
LIMITS = AssignmentLimits(
    trainers=("cpu:0", "cuda:0"), is_host=(True, False), max_units=(1000, 1000), cores=8, delay=4
)


def times(split: tuple[int, int], threads: Threads = THREADS, *, noise: float = 0.0, seed: int = 0):
    """Two trainers of affine times, a loader that scales perfectly, a sampler of which a tenth is serial."""
    rng = np.random.default_rng(seed)
    factor = np.exp(noise * rng.standard_normal(6))
    host = (0.002 + 4e-4 * split[0] / threads.train) if split[0] else 0.0
    accelerator = (0.004 + 1e-5 * split[1]) if split[1] else 0.0
    return Observation(
        step=seed,
        assignment=Assignment(split=split, threads=threads),
        iteration_s=0.05,
        sample_s=tuple(1e-5 * units * (0.1 + 0.9 / threads.sample) * factor[0] for units in split),
        load_s=tuple(2e-5 * units / threads.load * factor[1] for units in split),
        sample_on_device_s=(0.0, 0.0),
        transfer_s=(0.0, 2e-6 * split[1] * factor[2]),
        propagate_s=(host * factor[3], accelerator * factor[4]),
        synchronize_s=0.001 * factor[5],
    )


def run(*parts: tuple[tuple[int, int], Threads, int], noise: float = 0.0) -> list[Observation]:
    history = []
    for split, threads, count in parts:
        history += [times(split, threads, noise=noise, seed=len(history) + step) for step in range(count)]
    return [replace(each, step=step) for step, each in enumerate(history)]


def test_periods_are_steps_in_a_row_under_one_assignment_newest_first() -> None:
    evidence = group_history(run(((500, 500), THREADS, 7), ((200, 800), THREADS, 5)))
    assert [period.assignment.split for period in evidence.periods] == [(200, 800), (500, 500)]
    assert [period.steps[LOAD] for period in evidence.periods] == [5, 7]
    assert evidence.periods[1].seconds[LOAD] == pytest.approx(2e-5 * 1000 / 2)


def test_a_device_that_halves_its_speed_is_seen_in_three_steps() -> None:
    history = run(((500, 500), THREADS, 40), noise=0.05)
    slow = [
        replace(step, propagate_s=(step.propagate_s[0], 2 * step.propagate_s[1])) if step.step >= 37 else step
        for step in history
    ]
    evidence = group_history(slow, delay=4)
    column = FIRST_TRAINER + 1
    assert np.flatnonzero(evidence.has_changed).tolist() == [column]
    assert evidence.periods[0].seconds[column] == pytest.approx(2 * 0.009, rel=0.1)
    assert not group_history(history, delay=4).has_changed.any()


def test_what_was_seen_before_a_change_is_scaled_to_the_present() -> None:
    older = run(((500, 500), THREADS, 12), ((400, 600), THREADS, 24))
    slow = [
        replace(step, propagate_s=(step.propagate_s[0], 2 * step.propagate_s[1])) if step.step >= 26 else step
        for step in older
    ]
    periods = group_history(slow, delay=4).periods
    assert periods[1].seconds[FIRST_TRAINER + 1] == pytest.approx(2 * 0.009)
    assert periods[1].is_past
    assert not periods[0].is_past


def test_what_was_seen_before_several_changes_is_scaled_by_all_of_them() -> None:
    """Three times as long within the second period, and twice as long again within the newest."""
    history = run(((500, 500), THREADS, 12), ((400, 600), THREADS, 24), ((450, 550), THREADS, 24))
    slowed = [1 if step.step < 24 else 3 if step.step < 48 else 6 for step in history]
    slow = [
        replace(step, propagate_s=(step.propagate_s[0], factor * step.propagate_s[1]))
        for step, factor in zip(history, slowed, strict=True)
    ]
    seconds = [period.seconds[FIRST_TRAINER + 1] for period in group_history(slow, delay=4).periods]
    assert seconds == pytest.approx([6 * (0.004 + 1e-5 * units) for units in (550, 600, 500)])


def test_one_hiccup_is_no_change() -> None:
    history = run(((500, 500), THREADS, 40), noise=0.05)
    history[38] = replace(history[38], load_s=tuple(10 * seconds for seconds in history[38].load_s))
    evidence = group_history(history, delay=4)
    assert not evidence.has_changed.any()
    assert evidence.periods[0].seconds[LOAD] == pytest.approx(0.01, rel=0.05)


def test_times_of_two_sizes_give_launch_and_slope() -> None:
    model = fit_step_model(group_history(run(((500, 500), THREADS, 6), ((800, 200), THREADS, 6))), LIMITS)
    line = model.propagate[1]
    assert line is not None
    assert line.launch_s == pytest.approx(0.004, rel=0.1)
    assert line.unit_s == pytest.approx(1e-5, rel=0.1)
    assert model.synchronize_s == pytest.approx(0.001)


def test_the_model_is_exact_where_the_newest_steps_are() -> None:
    history = run(((500, 500), THREADS, 6), ((700, 300), Threads(sample=1, load=3, train=4), 6), noise=0.05)
    evidence = group_history(history)
    model = fit_step_model(evidence, LIMITS)
    newest = evidence.periods[0]
    stages = model.stages_s(newest.assignment)
    assert stages["load"] == pytest.approx(newest.seconds[LOAD])
    assert model.trainer_s(0, 700, 4) == pytest.approx(newest.seconds[FIRST_TRAINER] + model.synchronize_s)


def test_a_host_stage_learns_that_threads_do_not_help() -> None:
    splits = np.array([[500.0, 500.0]] * 3)

    def stage(seconds: list[float]) -> HostStage:
        shares = np.array([[each / 2, each / 2] for each in seconds])
        return fit_host_stage(shares, splits, [8, 4, 2], [0.02] * 3, (1.0, 1.0), ("a", "b"))

    saturated = stage([0.01, 0.01, 0.02])
    assert saturated.curve.relative_time(16) == pytest.approx(saturated.curve.relative_time(8), rel=0.05)
    shared = stage([0.01, 0.02, 0.04])
    assert shared.curve.relative_time(16) == pytest.approx(shared.curve.relative_time(8) / 2, rel=0.1)


def test_a_host_stage_learns_from_one_step_which_trainer_needs_no_loading() -> None:
    # As it is: reading rows in place takes no time, but a call does.
    stage = fit_host_stage(
        np.array([[1e-6, 0.016]]), np.array([[200.0, 800.0]]), [2], [0.03], (1.0, 1.0), ("cpu", "cuda")
    )
    assert stage.weights[0] == 0
    assert stage.seconds((600, 400), 2) == pytest.approx(0.008, rel=0.1)


def distinct(units: float) -> float:
    """What is met of 1,000 vertices by units that meet two of them each, with replacement."""
    return 1000 * (1 - (1 - 1 / 1000) ** (2 * units))


@pytest.mark.parametrize("work", [lambda units: units**0.65, distinct, lambda units: units])
def test_a_host_stage_learns_from_the_sizes_of_its_shares_how_its_work_grows(work) -> None:
    splits = np.array([[100.0, 300.0, 900.0, 1700.0], [1200.0, 1300.0, 200.0, 300.0]])
    rng = np.random.default_rng(3)
    shares = 1e-4 * np.vectorize(work)(splits) * np.exp(0.02 * rng.standard_normal(splits.shape))
    stage = fit_host_stage(shares, splits, [4, 4], [0.03] * 2, (1.0,) * 4, ("a", "a", "a", "b"))
    assert stage.seconds(splits[0].tolist(), 4) == pytest.approx(shares[0].sum())
    for other in ([0, 0, 0, 3000], [1500, 1500, 0, 0], [750] * 4):
        assert stage.seconds(other, 4) == pytest.approx(sum(1e-4 * work(units) for units in other), rel=0.15)


@given(st.floats(0.1, 1e4), st.sampled_from(possible_growths(4096.0)))
def test_growth_and_its_inverse(units: float, growth: ShareGrowth) -> None:
    work = growth.work(units)
    assert growth.work_of_all(np.array([units]))[0] == pytest.approx(work)
    # Near its bound a double does not tell units apart.
    if work < 0.999 * growth.bound:
        assert growth.units(work) == pytest.approx(units, rel=1e-6)
    assert growth.work(2 * units) <= 2 * work * (1 + 1e-12)
    assert growth.units(growth.bound) == float("inf")


@pytest.mark.parametrize(
    ("seen", "most"),
    [
        ([((500, 500), THREADS, 6), ((300, 700), THREADS, 6)], 1000),
        # The accelerator holds 400, and the CPU trainer has one thread of the many that the others need.
        ([((600, 400), THREADS, 6), ((700, 300), Threads(sample=4, load=3, train=1), 6)], 400),
    ],
)
def test_the_solver_makes_both_trainers_equally_long_busy(seen: list, most: int) -> None:
    history, limits = run(*seen), replace(LIMITS, max_units=(1000, most))
    model = fit_step_model(group_history(history), limits)
    best = best_assignment(model, history[-1].assignment, limits)
    assert limits.allows(best)
    # By brute force over splits and threads, with the machine's own times.
    least = min(
        max(
            sum(found.sample_s),
            sum(found.load_s),
            found.transfer_s[1],
            max(found.propagate_s) + found.synchronize_s,
        )
        for units in range(1000 - most, 1001, 10)
        for sample in range(1, 7)
        for load in range(1, 8 - sample)
        for found in [
            times((units, 1000 - units), Threads(sample=sample, load=load, train=8 - sample - load))
        ]
    )
    found = times(best.split, best.threads)
    reached = max(
        sum(found.sample_s),
        sum(found.load_s),
        found.transfer_s[1],
        max(found.propagate_s) + found.synchronize_s,
    )
    assert reached <= 1.05 * least


@pytest.mark.parametrize("units", [50, 300, 900])
def test_a_trainers_capacity_is_what_it_does_in_that_time(units: int) -> None:
    model = fit_step_model(group_history(run(((500, 500), THREADS, 6), ((800, 200), THREADS, 6))), LIMITS)
    for trainer in (0, 1):
        for threads in (1, 4):
            within_s = model.trainer_s(trainer, units, threads)
            assert within_s > model.synchronize_s
            assert model.capacity(trainer, within_s, threads) == pytest.approx(units)


def test_threads_that_training_can_spare_leave_it_a_margin() -> None:
    # Nothing makes sampling faster, and the CPU trainer is needed: half of its threads would do.
    history = [
        replace(each, sample_s=(0.04, 0.04), load_s=(1e-4, 1e-4))
        for each in run(((400, 600), Threads(sample=1, load=2, train=5), 6), ((400, 600), THREADS, 6))
    ]
    limits = replace(LIMITS, max_units=(400, 600))
    model = fit_step_model(group_history(history), limits)
    best = best_assignment(model, history[-1].assignment, limits)
    within_s = 0.9 * model.iteration_s(best)
    assert best.threads.train > 1
    assert model.trainer_s(0, best.split[0], best.threads.train) <= within_s
    # One thread fewer would not do.
    assert model.trainer_s(0, best.split[0], best.threads.train - 1) > within_s


@given(
    most=st.lists(st.integers(0, 1000), min_size=2, max_size=2),
    seed=st.integers(0, 1000),
    cores=st.integers(3, 64),
)
# The CPU trainer is lost: the threads that it had are not in use.
@example(most=[0, 1000], seed=0, cores=3)
def test_the_solver_keeps_to_the_limits(most: list[int], seed: int, cores: int) -> None:
    limits = replace(LIMITS, max_units=tuple(most), cores=cores)
    present = Assignment(split=(500, 500), threads=Threads(sample=1, load=1, train=1))
    history = [replace(times((500, 500), noise=0.1, seed=seed), assignment=present)]
    best = best_assignment(fit_step_model(group_history(history), limits), present, limits)
    assert sum(best.split) == 1000
    if sum(most) >= 1000:
        assert limits.allows(best)


@pytest.mark.parametrize("serial", [0.0, 0.1, 0.6])
def test_fewest_threads_are_the_fewest(serial: float) -> None:
    curve = ThreadScaling(serial)
    for relative in np.linspace(serial + 0.02, 1.0, 23):
        fewest = curve.min_threads(relative)
        assert curve.relative_time(fewest) <= relative + 1e-9
        assert fewest == 1 or curve.relative_time(fewest - 1) > relative


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.randoms())
def test_moves_lead_from_one_split_to_the_other(before: list[int], random) -> None:
    after = list(before)
    random.shuffle(after)
    now = list(before)
    for amount, giver, taker in split_moves(before, after):
        assert amount > 0
        now[giver] -= amount
        now[taker] += amount
    assert now == after


def test_a_change_between_two_assignments_makes_the_older_one_past() -> None:
    # Twice the time with nearly the same units: no part of it that does not grow with them explains that.
    before, after = run(((500, 500), THREADS, 8)), run(((500, 500), THREADS, 8), ((480, 520), THREADS, 6))[8:]
    slow = [replace(each, propagate_s=(2 * each.propagate_s[0], each.propagate_s[1])) for each in after]
    assert [period.is_past for period in group_history(before + after).periods] == [False, False]
    assert [period.is_past for period in group_history(before + slow).periods] == [False, True]


def test_fewer_threads_explain_why_the_cpu_trainer_is_slower() -> None:
    """A quarter of the threads, and nearly four times the time; but not without that change."""
    fewer = Threads(sample=4, load=3, train=1)
    moved = run(((500, 500), THREADS, 8), ((500, 500), fewer, 6))
    slower = moved[8].propagate_s[0] / moved[7].propagate_s[0]
    assert slower > 3.5
    assert [period.is_past for period in group_history(moved).periods] == [False, False]
    # Fewer threads do not explain that it is faster.
    faster = [
        replace(each, propagate_s=(each.propagate_s[0] / slower**2, each.propagate_s[1]))
        for each in moved[8:]
    ]
    assert [period.is_past for period in group_history(moved[:8] + faster).periods] == [False, True]


def test_an_idle_trainer_is_as_fast_as_its_mate_was_before_that_slowed_down() -> None:
    limits = replace(LIMITS, trainers=("cuda:0", "cuda:1"), is_host=(False, False))
    steps = run(((1000, 0), THREADS, 40))
    steps = [replace(each, propagate_s=(0.02 if each.step < 30 else 0.04, 0.0)) for each in steps]
    fitted = fit_step_model(group_history(steps, delay=4), limits)
    assert fitted.trainer_s(0, 1000, 1) == pytest.approx(0.04 + 0.001, rel=0.01)
    assert fitted.trainer_s(1, 1000, 1) == pytest.approx(0.02 + 0.001, rel=0.01)


def test_a_stage_that_nobody_needed_last_is_still_known() -> None:
    # The second trainer needs nothing loaded: its steps say nothing of what the first one's cost.
    stage = fit_host_stage(
        np.array([[0.0, 0.0], [0.02, 0.0]]),
        np.array([[0.0, 1000.0], [1000.0, 0.0]]),
        [2, 2],
        [0.05, 0.05],
        [1.0, 1.0],
        ["cpu", "cuda"],
    )
    assert stage.seconds((0, 1000), 2) == 0
    assert stage.seconds((1000, 0), 2) == pytest.approx(0.02)


def test_core_seconds_by_hand() -> None:
    """Each stage's time times its threads, the host's trainer on one thread, and synchronization."""
    curve, growth = ThreadScaling(serial=0.25), ShareGrowth()
    known = FittedStepModel(
        sample=HostStage(1e-5, (1.0, 2.0), growth, curve),
        load=HostStage(3e-5, (1.0, 0.5), growth, curve),
        propagate=(StageLine(0.002, 4e-4), StageLine(0.004, 1e-5)),
        transfer=(None, None),
        sample_on_device=(None, None),
        is_host=(True, False),
        train_curve=curve,
        synchronize_s=0.001,
        core_part=0.25,
    )
    threads = Threads(sample=3, load=2, train=4)
    # With k threads a stage takes a quarter and three quarters over k of its time, on k cores.
    sample_s = 1e-5 * (100 + 2 * 60) * (0.25 + 0.75 / 3)
    load_s = 3e-5 * (100 + 0.5 * 60) * (0.25 + 0.75 / 2)
    cores_s = 0.001 + 3 * sample_s + 2 * load_s + 0.002 + 100 * 4e-4
    assert known.core_s((100, 60), threads) == pytest.approx(cores_s)
    assert known.host_s((100, 60), threads) == pytest.approx(0.25 * cores_s)
    # Without targets on the host, its trainer uses no core.
    without = 0.001 + 3 * 1e-5 * 320 * (0.25 + 0.25) + 2 * 3e-5 * 80 * (0.25 + 0.375)
    assert known.core_s((0, 160), threads) == pytest.approx(without)


def test_a_larger_share_is_no_more_than_the_device_holds() -> None:
    limits = AssignmentLimits(
        trainers=("cpu:0", "cuda:0", "npu:0"),
        is_host=(True, False, False),
        max_units=(900, 600, 900),
        cores=8,
        delay=4,
    )
    present = Assignment(split=(100, 500, 400), threads=THREADS)
    seen = Observation(
        step=0,
        assignment=present,
        iteration_s=0.05,
        sample_s=(1e-3,) * 3,
        load_s=(1e-3,) * 3,
        sample_on_device_s=(0.0,) * 3,
        transfer_s=(0.0,) * 3,
        propagate_s=(0.02, 0.04, 0.049),
        synchronize_s=0.001,
    )
    evidence = group_history([replace(seen, step=step) for step in range(6)])
    found = _larger_share(fit_step_model(evidence, limits), evidence, present, limits)
    assert found is not None
    # Half of 100 and, of half of 400, what there is room for besides.
    assert found[0] == replace(present, split=(50, 600, 350))


def test_the_cpu_trainer_keeps_the_fewest_threads_that_do() -> None:
    """Where stages share two busy cores, and it has more threads than these."""
    limits = replace(LIMITS, cores=2, threads_are_shared=True)
    threads = Threads(sample=2, load=2, train=8)
    history = [replace(each, iteration_s=0.022) for each in run(((40, 960), threads, 6))]
    model = fit_step_model(group_history(history), limits)
    present = history[-1].assignment
    found = _fewer_train_threads(model, group_history(history), present, limits)
    assert found is not None
    enough = [train for train in range(1, 9) if model.trainer_s(0, 40, train) <= 0.8 * 0.022]
    assert 1 < enough[0] < 7
    assert found[0] == replace(present, threads=replace(threads, train=enough[0]))


def seen(
    split: tuple[int, ...],
    propagate_s: tuple[float, ...],
    transfer_s: tuple[float, ...] = (),
    host_s: tuple[float, ...] = (),
) -> Observation:
    """A step that waits for its slowest trainer; `host_s` is what each share takes to sample, and to load."""
    host_s = host_s or tuple(1e-6 * units for units in split)
    transfer_s = transfer_s or (0.0,) * len(split)
    return Observation(
        step=0,
        assignment=Assignment(split=split, threads=THREADS),
        iteration_s=max(*propagate_s, *transfer_s) + 0.001,
        sample_s=host_s,
        load_s=host_s,
        sample_on_device_s=(0.0,) * len(split),
        transfer_s=transfer_s,
        propagate_s=propagate_s,
        synchronize_s=0.001,
    )


def of_devices(names: tuple[str, ...], total: int) -> AssignmentLimits:
    """No trainer of these is the host's, and each holds all targets."""
    count = len(names)
    return AssignmentLimits(
        trainers=names, is_host=(False,) * count, max_units=(total,) * count, cores=8, delay=4
    )


def in_a_row(*steps: Observation) -> list[Observation]:
    """Six of each."""
    repeated = [each for each in steps for _ in range(6)]
    return [replace(each, step=number) for number, each in enumerate(repeated)]


def test_a_device_that_had_few_targets_is_tried_with_more() -> None:
    """What 100 of 1000 took may be launch. In proportion, the device would be twice as slow as the other."""
    limits = of_devices(("gpu:0", "npu:0"), 1000)
    few = seen((900, 100), (0.009, 0.002))
    evidence = group_history(in_a_row(few))
    model = fit_step_model(evidence, limits)
    assert best_assignment(model, few.assignment, limits).split[1] < 400
    found = _launch_bound_devices(model, evidence, few.assignment, limits)
    assert found is not None
    assert found[0].split[1] > 600
    # Once each was seen with two numbers of targets, what it takes is known.
    more = seen((400, 600), (0.004, 0.012))
    evidence = group_history(in_a_row(few, more))
    assert _launch_bound_devices(fit_step_model(evidence, limits), evidence, more.assignment, limits) is None


def test_the_host_is_not_taken_for_launch_bound() -> None:
    limits = replace(of_devices(("cpu:0", "gpu:0"), 1000), is_host=(True, False))
    few = seen((100, 900), (0.002, 0.009))
    evidence = group_history(in_a_row(few, seen((100, 600), (0.002, 0.0065))))
    assert _launch_bound_devices(fit_step_model(evidence, limits), evidence, few.assignment, limits) is None


def test_the_host_is_tried_alone_where_devices_take_the_same_time_for_any_share() -> None:
    """A share of three times the targets took two devices no longer: only without both a step gets faster."""
    limits = replace(of_devices(("cpu:0", "npu:0", "npu:1"), 1000), is_host=(True, False, False))
    few = seen((100, 225, 675), (0.006, 0.019, 0.019))
    evidence = group_history(in_a_row(few))
    found = _launch_bound_devices(fit_step_model(evidence, limits), evidence, few.assignment, limits)
    assert found is not None
    assert found[0].split == (1000, 0, 0)
    # Where the larger share takes longer, it is work.
    work = seen((100, 225, 675), (0.006, 0.010, 0.019))
    evidence = group_history(in_a_row(work))
    found = _launch_bound_devices(fit_step_model(evidence, limits), evidence, work.assignment, limits)
    assert found is None or found[0].split[0] < 1000


def test_devices_that_are_full_are_not_tried_with_more() -> None:
    limits = replace(of_devices(("gpu:0", "npu:0"), 1000), max_units=(900, 100))
    few = seen((900, 100), (0.009, 0.002))
    evidence = group_history(in_a_row(few))
    assert _launch_bound_devices(fit_step_model(evidence, limits), evidence, few.assignment, limits) is None


def test_one_of_the_devices_behind_a_switch_is_tried_with_all_targets() -> None:
    """Four transfers take 40 ms at once, at best. If one link is what slows them, each alone takes 10.

    A share's sampling and loading costs the same, however large: with fewer shares there is less to do.
    """
    limits = of_devices(("gpu:0", "gpu:1", "gpu:2", "gpu:3"), 1000)
    quarter = (250,) * 4
    even = seen(quarter, (0.002,) * 4, (0.04,) * 4, (0.004,) * 4)
    shifted = seen((400, 200, 200, 200), (0.003, 0.002, 0.002, 0.002), (0.2,) * 4, (0.004,) * 4)
    evidence = group_history(in_a_row(shifted, even))
    model = fit_step_model(evidence, limits)
    found = fewer_shares(model, evidence, even.assignment, limits)
    assert found is not None
    assert sorted(found[0].split) == [0, 0, 0, 1000]
    # Devices of four kinds have four links.
    limits = of_devices(("a:0", "b:0", "c:0", "d:0"), 1000)
    assert fewer_shares(fit_step_model(evidence, limits), evidence, even.assignment, limits) is None


def test_an_odd_device_of_a_kind_is_not_taken_for_launch_of_the_others() -> None:
    """Two devices take 48 us a target, and the third of their kind has 1281 of them in less time than 774."""
    took = (774 * 48e-6, 502 * 48e-6, 0.026)
    evidence = group_history(in_a_row(seen((774, 502, 1281), took)))
    slow, other, _ = fit_step_model(evidence, of_devices(("gpu:0", "gpu:1", "gpu:2"), 2557)).propagate
    assert slow is not None
    assert other is not None
    assert slow.seconds(387) == pytest.approx(387 * 48e-6, rel=0.1)
    assert other.seconds(251) == pytest.approx(251 * 48e-6, rel=0.1)


def test_what_few_targets_take_says_how_much_is_launch_and_nothing_of_more() -> None:
    """A device takes 5.5 ms and 1.6 us a target; it had 432 of them, and has 3."""
    few = [seen((9568, 432), (0.05, 0.0062)), seen((9997, 3), (0.052, 0.005505))]
    line = fit_step_model(group_history(in_a_row(*few)), of_devices(("gpu:0", "npu:0"), 10000)).propagate[1]
    assert line is not None
    assert line.seconds(5000) == pytest.approx(0.0135, rel=0.1)


def test_transfers_grow_with_the_rows_that_are_loaded() -> None:
    """A share meets at most 400 vertices, and a device had one number of targets."""
    split = (1200, 600, 300, 150, 75)
    rows = tuple(400 * (1 - np.exp(-units / 400)) for units in split)
    loaded_s = tuple(1e-5 * count for count in rows)
    step = seen(split, (1e-4,) * 5, tuple(2e-5 * count for count in rows), loaded_s)
    model = fit_step_model(
        group_history(in_a_row(step)), of_devices(("a:0", "b:0", "c:0", "d:0", "e:0"), sum(split))
    )
    line = model.transfer[3]
    assert line is not None
    assert line.growth == model.load.growth
    # In proportion to the targets it would be 20 ms.
    assert 2e-5 * rows[0] * 0.9 < line.seconds(1200) < 0.014


def test_all_targets_go_to_one_trainer_where_that_may_be_less_to_sample() -> None:
    """Twice the targets took 1.45 times as long to sample: for being more, or for being another trainer's."""
    limits = of_devices(("gpu:0", "npu:0"), 1500)
    step = seen((1000, 500), (1e-3, 1e-3), (), (0.0145, 0.01))
    step = replace(step, iteration_s=0.0245)
    evidence = group_history(in_a_row(step))
    model = fit_step_model(evidence, limits)
    assert model.sample.growth.power > 0.8
    found = _by_size_alone(model, evidence, step.assignment, limits)
    assert found is not None
    assert max(found[0].split) > 1490
    # A trainer that was seen with half and with twice the targets tells the two apart.
    other = replace(seen((500, 1000), (1e-3, 1e-3), (), (0.0073, 0.02)), iteration_s=0.0273)
    evidence = group_history(in_a_row(other, step))
    assert _by_size_alone(fit_step_model(evidence, limits), evidence, step.assignment, limits) is None
    # What is not waited for need not get less.
    evidence = group_history(in_a_row(replace(step, iteration_s=0.04)))
    assert _by_size_alone(fit_step_model(evidence, limits), evidence, step.assignment, limits) is None
