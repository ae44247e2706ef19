"""What overlapping stages cost each other in a simulated run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.prediction.simulate import simulate
from hyrt_perfmodel.prediction.stage_times import iteration_s, stage_times
from hyrt_perfmodel.prediction.stages import PAPER_TERMS, ExtraTerms
from hyrt_perfmodel.task_simulation import contended_rates
from simulated_machines import machine, start, training

DEMANDS = st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=1, max_size=8)


@given(DEMANDS, st.lists(st.floats(0.1, 20), min_size=3, max_size=3))
def test_rates_use_what_there_is_and_no_more(demands, capacities):
    rates = contended_rates(demands, capacities)
    used = [
        sum(rate * demand[resource] for rate, demand in zip(rates, demands, strict=True))
        for resource in range(3)
    ]
    full = [use >= capacity * (1 - 1e-9) for use, capacity in zip(used, capacities, strict=True)]
    assert all(use <= capacity * (1 + 1e-9) for use, capacity in zip(used, capacities, strict=True))
    for rate, demand in zip(rates, demands, strict=True):
        assert 0 < rate <= 1
        if rate == 1:
            continue
        # Something it needs is used up, and nobody who uses that is faster.
        assert any(
            full[resource]
            and demand[resource] > 0
            and all(
                other <= rate * (1 + 1e-9)
                for other, theirs in zip(rates, demands, strict=True)
                if theirs[resource] > 0
            )
            for resource in range(3)
        )


def test_rates_by_hand():
    # 6 wanted of 3: half. The third user needs another resource: 1 and 2 wanted of it, half of 1 is used by
    # the second.
    assert contended_rates([[2, 0], [4, 1], [0, 2]], [3, 1.5]) == [0.5, 0.5, 0.5]
    assert contended_rates([[2, 0], [4, 1], [0, 1]], [3, 1.5]) == [0.5, 0.5, 1.0]
    assert contended_rates([[2, 0]], [3, 1.5]) == [1.0]
    assert contended_rates([], [1.0]) == []


def test_stages_with_more_threads_than_cores_take_turns():
    platform = machine(1, host={"trains": False, "cores": 8, "thread_load_gb_s": 0.5, "step_s": 0})
    work, assignment = training(1000), start(1000, sample=8, load=8)
    times = stage_times(platform, work, assignment)
    # Both need all cores: their work is done one after the other, whichever way the cores are shared.
    run = simulate(platform, work, start=assignment, iterations=200)
    together = times.sample_s + times.load_s
    assert together > times.propagate_s
    assert run.settled_iteration_s() == pytest.approx(together, rel=0.01)
    assert run.settled_iteration_s() == pytest.approx(iteration_s(times, platform.host), rel=0.01)
    assert run.stage_s["load"][100] > 1.2 * times.load_s
    paper = simulate(platform, work, start=assignment, iterations=200, terms=PAPER_TERMS)
    assert paper.settled_iteration_s() == pytest.approx(max(times.sample_s, times.load_s), rel=0.01)
    apart = simulate(platform, work, start=assignment, iterations=200, terms=ExtraTerms(shared_cores=False))
    assert apart.settled_iteration_s() == pytest.approx(max(times.sample_s, times.load_s), rel=0.01)


def test_threads_that_the_cores_hold_slow_nobody():
    platform = machine(3, host={"cores": 17})
    work, assignment = training(), start(1000, 1000, 1000, 1000)
    alone = simulate(machine(3), work, start=assignment, iterations=30)
    # 8 threads sample, 4 load, 4 train and 1 synchronizes. With 4 of 17 cores the trainer is as fast as the
    # whole host of the machine whose cores are not known.
    trainer = stage_times(machine(3), work, assignment).trainer_propagate_s[0]
    full = replace(platform, host=replace(platform.host, macs_per_s=1e12 * 17 / 4, memory_gb_s=100 * 17 / 4))
    run = simulate(full, work, start=assignment, iterations=30)
    assert run.trainer_propagate_s[9, 0] == pytest.approx(trainer)
    assert run.trainer_propagate_s[:, 1:] == pytest.approx(alone.trainer_propagate_s[:, 1:])


def test_loading_and_transfers_share_the_memory():
    # Nothing but 40 MB a trainer to load at 50 GB/s and to send at 25.
    free = machine(
        2,
        host={"trains": False, "memory_gb_s": 50, "thread_edges_per_s": None, "step_s": 0},
        accelerator={"link_gb_s": 25, "memory_gb_s": 1e6, "macs_per_s": 1e18, "values_per_s": 1e18},
    )
    narrow = replace(free, host=replace(free.host, shared_memory_gb_s=50))
    work, assignment = training(2000), start(1000, 1000)
    alone = simulate(free, work, start=assignment, iterations=300, terms=PAPER_TERMS)
    assert alone.settled_iteration_s() == pytest.approx(80e6 / 50e9, rel=0.01)
    together = simulate(narrow, work, start=assignment, iterations=300, terms=PAPER_TERMS)
    # Every byte crosses the memory twice, at 50 GB/s.
    assert together.settled_iteration_s() == pytest.approx(160e6 / 50e9, rel=0.01)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_accelerators_behind_one_switch_share_it(count):
    platform = machine(
        count,
        host={"trains": False, "memory_gb_s": 1e4, "thread_edges_per_s": None, "step_s": 0},
        accelerator={"switch_gb_s": 24, "memory_gb_s": 1e6, "macs_per_s": 1e18, "values_per_s": 1e18},
    )
    run = simulate(
        platform,
        training(count * 1000),
        start=start(*(1000,) * count),
        iterations=300,
        depth=8,
        terms=PAPER_TERMS,
    )
    # 40 MB each, over links of 12 GB/s of which the switch carries two.
    assert run.settled_iteration_s() == pytest.approx(max(40e6 / 12e9, count * 40e6 / 24e9), rel=0.01)


def test_a_trainer_on_the_host_is_slowed_by_loading():
    platform = machine(1, host={"shared_memory_gb_s": 100})
    work, assignment = training(2000), start(1000, 1000)
    alone = simulate(machine(1), work, start=assignment, iterations=100)
    together = simulate(platform, work, start=assignment, iterations=100)
    assert together.trainer_propagate_s[50, 0] > 1.05 * alone.trainer_propagate_s[50, 0]
    # What computes in its own memory is not.
    assert together.trainer_propagate_s[50, 1] == pytest.approx(alone.trainer_propagate_s[50, 1])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(2, 32),
    st.floats(20, 300),
    st.floats(5, 100),
    st.tuples(*[st.integers(1, 16)] * 3),
    st.integers(4, 8),
)
def test_sharing_never_beats_the_bound_of_the_model(count, cores, shared, switch, threads, depth):
    sample, load, train = threads
    platform = machine(
        count, host={"cores": cores, "shared_memory_gb_s": shared}, accelerator={"switch_gb_s": switch}
    )
    work, assignment = (
        training(1000 * count + 1000),
        start(*(1000,) * (count + 1), sample=sample, load=load, train=train),
    )
    bound = iteration_s(stage_times(platform, work, assignment), platform.host)
    run = simulate(platform, work, start=assignment, iterations=80, depth=depth)
    assert run.done_s[-1] >= 80 * bound * (1 - 1e-9)
    # Bytes of loading and transfers over what the memory and the switch carry.
    loaded, sent = 40e6 * (count + 1), 40e6 * count
    assert run.done_s[-1] >= 80 * max((loaded + sent) / shared, sent / switch) / 1e9 * (1 - 1e-9)
