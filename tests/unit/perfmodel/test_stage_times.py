"""Stage times on a host that was measured, each part computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hyrt_perfmodel.measured_costs import LoadCost, SampleCost, WalkCost
from hyrt_perfmodel.platform import Accelerator, CoreContention, Host, Platform, TrainerRates
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.initial_assignment import (
    activations_bytes,
    host_memory_bytes,
    initial_assignment,
)
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.prediction.stage_times import StageTimes, iteration_s, stage_times
from hyrt_perfmodel.prediction.stages import PAPER_TERMS, ExtraTerms
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

# Of 100 targets: 3,000 input vertices, 800 destinations of the first layer.
WORK = Workload(vertices=(3000, 800, 100), edges=(4000, 900), features=(50, 20, 10), concat=True)
TRAINING = TrainingWorkload(
    at=proportional_workload(WORK, 100),
    targets_per_epoch=1000,
    batch_size=200,
    model="graphsage",
    best_form="aggregated",
    feature_bytes=1e6,
    graph_bytes=1e6,
)
# Multiply-accumulates of a step, of all updates forward and backward with both gradients, but the input's.
MACS = 2 * 800 * 100 * 20 + 3 * 100 * 40 * 10
HOST = Host(
    memory_gb_s=1.0,
    macs_per_s=1e9,
    cores=4,
    forms=("rows", "aggregated"),
    loading=tuple(
        LoadCost(form=form, matrix_bytes=1e6, threads=threads, row_s=row_s / threads, gb_s=2.0 * threads)
        for form, row_s in (("rows", 1e-8), ("aggregated", 3e-8))
        for threads in (1, 4)
    ),
    sampling=tuple(
        SampleCost(
            renumbers=renumbers, graph_bytes=1e6, edges=5e3, threads=threads, edges_per_s=rate * threads
        )
        for renumbers, rate in ((True, 1e6), (False, 2e6))
        for threads in (1, 4)
    ),
    sharing_of={
        "cpu": CoreContention(step_s=2e-4, efficiency=0.8),
        "cpu+cl": CoreContention(step_s=5e-4, efficiency=0.5),
    },
    weights_gb_s=0.5,
)
FOUR = Threads(sample=4, load=4, train=4)
CL = Accelerator(kind="cl", memory_gb_s=1e6, macs_per_s=1e9, link_gb_s=float("inf"), host_cores=1)
GPU = Accelerator(kind="gpu", memory_gb_s=1e6, macs_per_s=1e10, link_gb_s=1.0)
AGGREGATION = 2 * 900 * 20 * 4 / 1e9  # The second layer's, forward and backward.


def platform(*accelerators: Accelerator, **host: object) -> Platform:
    return Platform(name="m", host=replace(HOST, **host), accelerators=accelerators)  # type: ignore[arg-type]


def test_an_aggregate_reads_a_row_an_edge_and_each_destinations_own() -> None:
    times = stage_times(platform(), TRAINING, Assignment(split=(100,), threads=FOUR))
    assert times.load_s == pytest.approx((4000 + 800) * (3e-8 / 4 + 200 / 8e9))
    # A trainer that takes rows gets each input vertex once.
    rows = stage_times(platform(forms=("rows",)), TRAINING, Assignment(split=(100,), threads=FOUR))
    assert rows.load_s == pytest.approx(3000 * (1e-8 / 4 + 200 / 8e9))


def test_rows_are_numbered_where_they_are_gathered() -> None:
    assignment = Assignment(split=(100,), threads=FOUR)
    assert stage_times(platform(), TRAINING, assignment).sample_s == pytest.approx(4900 / 8e6)
    rows = stage_times(platform(forms=("rows",)), TRAINING, assignment)
    assert rows.sample_s == pytest.approx(4900 / 4e6)


def test_the_cores_sample_and_load_are_held_by_trainers_and_synchronize() -> None:
    """Sampling and loading with one thread, the cores that each trainer holds, and what follows them."""
    times = stage_times(platform(CL), TRAINING, Assignment(split=(100, 50), threads=FOUR))
    weights_s = 2 * (100 * 20 + 40 * 10) * 4 / 0.5e9
    assert times.host_trainers == "cl+cpu"
    sample_s = 4900 / 2e6 + 2450 / 1e6
    load_s = 4800 * (3e-8 + 200 / 2e9) + 1500 * (1e-8 + 200 / 2e9)
    # Of all four cores; the aggregate has been read already.
    cpu_s = MACS / 1e9 + AGGREGATION
    cl_s = MACS / 2 / 1e9 + (2000 * 50 + 900 * 20) * 4 / 1e15
    assert times.core_s == pytest.approx(sample_s + load_s + 4 * cpu_s + cl_s + times.synchronize_s)
    assert times.busy_s == pytest.approx(max(cpu_s, cl_s) + times.synchronize_s)
    assert times.synchronize_s == pytest.approx(weights_s)


def test_the_iteration_is_no_shorter_than_the_cores_work() -> None:
    model = platform()
    times = stage_times(model, TRAINING, Assignment(split=(200,), threads=FOUR))
    assert times.synchronize_s == pytest.approx(2e-4 + 2 * (100 * 20 + 40 * 10) * 4 / 0.5e9)
    assert times.core_s is not None
    # Three cores are free while the trainer synchronizes; what else there is takes them from the trainer.
    other_s = 9800 / 2e6 + 9600 * (3e-8 + 200 / 2e9)
    beyond_s = (other_s - 3 * times.synchronize_s) / 4
    trainer_s = times.trainer_propagate_s[0] + times.synchronize_s
    assert iteration_s(times, model.host) == pytest.approx(trainer_s + beyond_s / 0.8)
    waiting = platform(sharing_of={"cpu": CoreContention(step_s=2e-4, efficiency=0.8, wait_s=3e-3)})
    waited = stage_times(waiting, TRAINING, Assignment(split=(200,), threads=FOUR))
    assert waited.synchronize_s == times.synchronize_s
    assert iteration_s(waited, waiting.host) == pytest.approx(trainer_s + beyond_s / 0.8 + 3e-3)
    # Where the stages follow each other a step waits, too; in the published form nothing does.
    apart = ExtraTerms(shared_cores=False, overlap="nothing")
    whole_s = waited.sample_s + waited.load_s + trainer_s + 3e-3
    assert iteration_s(waited, waiting.host, apart) == pytest.approx(whole_s)
    published = stage_times(waiting, TRAINING, Assignment(split=(200,), threads=FOUR), PAPER_TERMS)
    assert published.wait_s == published.synchronize_s == 0.0
    assert iteration_s(times, model.host, ExtraTerms(shared_cores=False)) == max(times.stages_s.values())
    idle = replace(times, core_s=0.0)
    assert iteration_s(idle, model.host) == max(times.stages_s.values())


def test_trainers_that_wait_for_a_slower_stage_lose_nothing_to_shared_cores_meanwhile() -> None:
    """Two cores: the trainers take 10 ms of both, and sampling and loading 24 ms of one."""
    host = Host(
        memory_gb_s=8.0,
        macs_per_s=1e9,
        cores=2,
        sharing_of={"cpu": CoreContention(step_s=0.0, efficiency=0.75, wait_s=1e-3, lock_s=2e-3)},
    )
    taken = StageTimes(
        sample_s=0.0,
        load_s=0.0,
        transfer_s=0.0,
        propagate_s=0.010,
        synchronize_s=0.0,
        trainer_load_s=(0.0,),
        trainer_transfer_s=(0.0,),
        trainer_propagate_s=(0.010,),
        wait_s=1e-3,
        lock_s=2e-3,
        busy_s=0.010,
        core_s=0.044,
        host_trainers="cpu",
    )
    # 12 ms of work on both cores beyond the trainers': 4 ms are lost of it, and 3 ms to waiting.
    expected_ms = {
        4: 10 + 12 + 4 + 3,  # The trainers are slowest, and nothing hides what is lost.
        15: 10 + 12 + 4 + 3 - 4,  # A stage of 15 ms: the trainers and their wait leave 4 ms of it.
        20: 10 + 12,
        30: 30,
    }
    for sample_ms, step_ms in expected_ms.items():
        assert iteration_s(replace(taken, sample_s=1e-3 * sample_ms), host) == pytest.approx(1e-3 * step_ms)
    # No trainer on these cores waits there: 22 ms on both, a third as much that is lost, and 1 ms.
    elsewhere = replace(taken, busy_s=0.0, lock_s=0.0, sample_s=0.020, host_trainers="")
    step_s = iteration_s(elsewhere, replace(host, core_efficiency=0.75))
    assert step_s == pytest.approx((22 + 22 / 3 + 1) * 1e-3)


def test_rates_with_one_thread_and_with_all_are_joined_by_amdahls_law() -> None:
    alone = TrainerRates(memory_gb_s=1e6, macs_per_s=1e9)
    together = TrainerRates(memory_gb_s=1e6, macs_per_s=2e9)
    model = platform(models={"graphsage": together}, models_alone={"graphsage": alone})
    one, all_four = MACS / 1e9, MACS / 2e9
    # Of four cores: serial + (one - serial) / 4 is what all take.
    serial = (all_four - one / 4) / (1 - 1 / 4)
    for threads in (1, 2, 4, 9):
        given = Threads(sample=1, load=1, train=threads)
        times = stage_times(model, TRAINING, Assignment(split=(100,), threads=given))
        expected = serial + (one - serial) / min(threads, 4)
        assert times.trainer_propagate_s[0] == pytest.approx(expected, rel=1e-3)


def test_subgraphs_of_walks_take_their_steps_and_what_they_look_at() -> None:
    walks = replace(WORK, walk_steps=6000.0, scanned_edges=90_000.0)
    training = replace(TRAINING, at=proportional_workload(walks, 2), batch_size=2, targets_per_epoch=10)
    tables = tuple(
        WalkCost(graph_bytes=1e6, threads=threads, step_s=1e-7 / threads, scan_s=2e-9) for threads in (1, 4)
    )
    model = platform(walking=tables)
    times = stage_times(model, training, Assignment(split=(2,), threads=FOUR))
    assert times.sample_s == pytest.approx(6000 * 1e-7 / 4 + 90_000 * 2e-9)
    # Five steps of two subgraphs an epoch.
    assert predict(model, training, assignment=Assignment(split=(2,), threads=FOUR)).iterations == 5
    # Without tables: an access for every step and every edge that is looked at.
    bare = platform(sampling=(), loading=(), thread_edges_per_s=1e6)
    found = stage_times(bare, training, Assignment(split=(2,), threads=FOUR))
    assert found.sample_s == pytest.approx(96_000 / 4e6)


def test_the_host_keeps_what_is_in_flight_and_what_it_computes() -> None:
    flight = 3000 * 50 * 4 + 4900 * 4 + 900 * 8
    weights = 2 * (100 * 20 + 40 * 10) * 4
    found = host_memory_bytes([WORK], TRAINING, 3, host_workloads=[WORK])
    assert found == pytest.approx(2e6 + 3 * flight + 2 * weights + weights + activations_bytes(WORK))


def test_the_split_gives_a_faster_device_more() -> None:
    model = platform(replace(GPU, link_gb_s=100.0))
    found = initial_assignment(model, TRAINING, threads=FOUR)
    times = stage_times(model, TRAINING, found)
    assert sum(found.split) == 200
    assert found.split[1] > found.split[0]
    even = stage_times(model, TRAINING, Assignment(split=(100, 100), threads=FOUR))
    assert iteration_s(times, model.host) <= iteration_s(even, model.host)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_each_layer_pays_half_of_what_a_step_of_two_costs(layers: int) -> None:
    work = Workload(
        vertices=(0.0,) * (layers + 1), edges=(0.0,) * layers, features=(8,) * (layers + 1), concat=False
    )
    training = replace(TRAINING, at=lambda units: work, best_form="rows")
    device = replace(GPU, launch_s=4e-3, flush_s=1e-4, fill_s=3e-4, link_gb_s=float("inf"))
    times = stage_times(platform(device), training, Assignment(split=(0, 100), threads=FOUR))
    # A pipeline is drained and filled in each layer, forward and backward.
    assert times.trainer_propagate_s == pytest.approx((0.0, layers * (2e-3 + 2 * 4e-4)))


def test_a_trainer_that_the_step_cannot_do_without_keeps_its_targets() -> None:
    """The GPU is far faster, but its memory holds less than a step: the slow host does the rest."""
    weights = 2 * (100 * 20 + 40 * 10) * 4
    small = replace(GPU, link_gb_s=100.0, memory_gib=(weights + 3e6) / 2**30)
    found = initial_assignment(platform(small), TRAINING, threads=FOUR)
    assert sum(found.split) == 200
    assert 0 < found.split[1] < 200
    assert found.split[0] > 0
