"""Predictions beyond the paper's form: memory, the ideal, the last step, more accelerators, and advice."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.measured_costs import LoadCost
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.platform_file import load_platform, platform_names
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR, advise, predict, with_accelerators
from hyrt_perfmodel.prediction.stage_times import stage_times
from hyrt_perfmodel.prediction.stages import PAPER_TERMS, ExtraTerms
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

GIB = 2**30
WORK = Workload(vertices=(9000, 1500, 64), edges=(15_000, 1600), features=(100, 64, 16), concat=True)
ONE = Threads(sample=1, load=1, train=1)


def training(batch: int = 64, targets: int = 1000, **more: float) -> TrainingWorkload:
    sizes = {"targets_per_epoch": targets, "batch_size": batch, **more}
    return TrainingWorkload(at=proportional_workload(WORK, 64), **sizes)  # type: ignore[arg-type]


def machine(**device: float) -> Platform:
    given = {"memory_gb_s": 300, "macs_per_s": 9e11, "link_gb_s": 8, **device}
    return Platform(
        name="m",
        host=Host(memory_gb_s=40, macs_per_s=2e11, memory_gib=4),
        accelerators=(Accelerator(kind="a", **given),),  # type: ignore[arg-type]
    )


def test_the_last_step_of_an_epoch_has_what_is_left() -> None:
    platform, threads = machine(), ONE

    def step(split: tuple[int, int]) -> float:
        return predict(
            platform, training(), assignment=Assignment(split=split, threads=threads), terms=PAPER_TERMS
        ).iteration_s

    found = predict(
        platform, training(), assignment=Assignment(split=(16, 48), threads=threads), terms=PAPER_TERMS
    )
    # 1000 = 15 x 64 + 40, of which a quarter is the host's.
    assert found.iterations == 16
    assert found.epoch_s == pytest.approx(15 * step((16, 48)) + step((10, 30)))


def test_memory_of_host_and_device() -> None:
    split = (16, 48)
    assignment = Assignment(split=split, threads=ONE)
    work = training(feature_bytes=1e9, graph_bytes=2e8)
    found = predict(machine(memory_gib=2), work, assignment=assignment)

    def sizes(targets: int) -> tuple[float, ...]:
        return tuple(n * targets / 64 for n in (*WORK.vertices, *WORK.edges))

    weights = 4 * (200 * 64 + 128 * 16)

    def staged(targets: int) -> float:
        v0, v1, v2, e1, e2 = sizes(targets)
        return v0 * 100 * 4 + (e1 + e2) * 4 + (v1 + v2) * 8

    def kept(targets: int) -> float:
        _, v1, v2, _, _ = sizes(targets)
        values = v1 * (200 + 64) + v2 * (128 + 16) + max(v1 * 200, v2 * 128)
        return 4 * values

    assert found.memory.keys() == {"host", "a:0"}
    assert found.memory["a:0"].needed_bytes == pytest.approx(2 * weights + 2 * staged(48) + kept(48))
    assert found.memory["a:0"].available_bytes == 2 * GIB
    host = 1.2e9 + 4 * (staged(16) + staged(48)) + 4 * weights + 2 * weights + kept(16)
    assert found.memory["host"].needed_bytes == pytest.approx(host)
    assert all(memory.fits for memory in found.memory.values())
    full = predict(machine(memory_gib=2**-10), work, assignment=assignment)
    assert not full.memory["a:0"].fits
    assert full.memory["host"].fits


def test_a_device_that_reads_host_memory_needs_none_of_its_own() -> None:
    assignment = Assignment(split=(0, 64), threads=ONE)
    shared = predict(machine(link_gb_s=math.inf), training(), assignment=assignment).memory
    own = predict(machine(), training(), assignment=assignment).memory
    assert shared.keys() == {"host"}
    assert shared["host"].needed_bytes > own["host"].needed_bytes


def test_what_is_printed_is_json() -> None:
    found = predict(machine(), training(sample_s=1e-3)).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) >= {
        "stages_s",
        "iteration_s",
        "epoch_s",
        "iterations",
        "throughput_mteps",
        "bottleneck",
        "assignment",
        "memory_bytes",
    }
    assert set(found["stages_s"]) == {"sample", "load", "transfer", "propagate", "synchronize"}
    assert sum(found["assignment"]["split"].values()) == 64
    assert found["memory_bytes"]["a:0"]["have"] is None


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1, 300),
    st.floats(1e9, 1e13),
    st.floats(1, 30),
    st.integers(0, 5),
    st.booleans(),
    st.integers(1, 500),
)
def test_nothing_is_faster_than_the_ideal(memory, macs, link, count, trains, batch) -> None:
    device = Accelerator(kind="a", memory_gb_s=memory, macs_per_s=macs, link_gb_s=link, count=count)
    if not trains and not count:
        return
    platform = Platform(
        name="m", host=Host(memory_gb_s=40, macs_per_s=2e11, trains=trains), accelerators=(device,)
    )
    found = predict(platform, training(batch))
    assert found.ideal_epoch_s <= found.epoch_s * (1 + 1e-9)


def test_the_ideal_adds_up_speeds() -> None:
    platform = Platform(
        name="m",
        host=Host(memory_gb_s=1e6, macs_per_s=2e11, trains=False),
        accelerators=(
            Accelerator(kind="a", memory_gb_s=1e6, macs_per_s=3e11, link_gb_s=math.inf),
            Accelerator(kind="b", memory_gb_s=1e6, macs_per_s=1e11, link_gb_s=math.inf),
        ),
    )
    both = predict(platform, training(), terms=PAPER_TERMS).ideal_epoch_s
    alone = [
        predict(replace(platform, accelerators=(device,)), training(), terms=PAPER_TERMS).ideal_epoch_s
        for device in platform.accelerators
    ]
    assert 1 / both == pytest.approx(1 / alone[0] + 1 / alone[1])


def test_accelerators_are_counted_in_all_and_kept_in_proportion() -> None:
    a = Accelerator(kind="a", memory_gb_s=1, macs_per_s=1, link_gb_s=1, count=2)
    platform = Platform(
        name="m", host=Host(memory_gb_s=1, macs_per_s=1), accelerators=(a, replace(a, kind="b", count=4))
    )
    assert [kind.count for kind in with_accelerators(platform, 12).accelerators] == [4, 8]
    assert [kind.count for kind in with_accelerators(platform, 1).accelerators] == [1, 0]
    assert [trainer.name for trainer in with_accelerators(platform, 0).trainers()] == ["cpu:0"]
    with pytest.raises(ValueError, match="has no accelerators to add or remove"):
        with_accelerators(replace(platform, accelerators=()), 2)


def test_in_the_papers_form_loading_follows_from_the_bandwidth() -> None:
    table = LoadCost(form="rows", matrix_bytes=1e9, threads=1, row_s=1.0, gb_s=1.0)
    platform = machine()
    measured = replace(platform, host=replace(platform.host, loading=(table,)))
    work = training(batch_per_trainer=64)
    assert predict(measured, work, paper=True) == predict(platform, work, paper=True)
    assert predict(measured, work).stages.load_s > 1


@pytest.mark.parametrize(
    ("platform", "work", "change", "bottleneck"),
    [
        (machine(link_gb_s=0.01, macs_per_s=1e14), training(), "links twice as fast", "transfer"),
        (machine(), training(sample_s=1.0), "sampling twice as fast", "sample"),
        (
            Platform(
                name="m",
                host=Host(memory_gb_s=1e4, macs_per_s=1e9, trains=False),
                accelerators=(Accelerator(kind="a", memory_gb_s=1e4, macs_per_s=1e9, link_gb_s=1e4),),
            ),
            training(),
            "a computing twice as fast",
            "propagate",
        ),
        (
            Platform(
                name="m",
                host=Host(memory_gb_s=0.01, macs_per_s=1e14, trains=False),
                accelerators=(Accelerator(kind="a", memory_gb_s=1e4, macs_per_s=1e14, link_gb_s=1e4),),
            ),
            training(),
            "host memory twice as fast",
            "load",
        ),
    ],
)
def test_advice_moves_the_bottleneck(platform, work, change, bottleneck) -> None:
    work = replace(work, batch_per_trainer=64)
    now = predict(platform, work, paper=True)
    assert now.bottleneck == bottleneck
    found = {line.change: line for line in advise(platform, work, now, paper=True)}
    assert change in found
    # The bottleneck's term halves, and nothing else is near it.
    assert found[change].epoch_s == pytest.approx(now.epoch_s / 2, rel=0.02)


def test_advice_is_sorted_and_never_slower() -> None:
    platform = load_platform("2x-epyc7763-4x-a5000")
    work = training(4096, 10**6)
    now = predict(platform, work)
    found = advise(platform, work, now, max_changes=20)
    assert found == sorted(found, key=lambda line: line.epoch_s)
    assert found
    assert all(line.epoch_s < now.epoch_s for line in found)


def test_how_sure_it_is() -> None:
    assert predict(machine(), training()).relative_error == ASSUMED_ERROR
    assert predict(replace(machine(), relative_error=0.07), training()).relative_error == 0.07


@pytest.mark.parametrize("name", [name for name in platform_names() if name != "this-machine"])
def test_every_built_in_platform_predicts(name: str) -> None:
    found = predict(load_platform(name), training(1024, 10**6))
    assert 0 < found.ideal_epoch_s < found.epoch_s
    assert all(memory.fits for memory in found.memory.values())


def test_short_steps_do_better_without_threads() -> None:
    """Where stages overlap, trainers wait for the lock; one after the other, a step takes the stages' sum."""
    host = Host(
        memory_gb_s=10.0, macs_per_s=1e11, cores=2, step_s=2e-4, wait_s=3e-4, lock_s=9e-4, launch_s=1e-3
    )
    serial = ("one after the other", ExtraTerms(overlap="nothing"))
    for rows, is_named in ((300, True), (300_000, False)):
        work = model_workload("gcn", (rows, rows, 100), (rows, rows), (64, 32, 4))
        training = TrainingWorkload(
            at=lambda units, work=work: work, targets_per_epoch=1000, batch_size=100, sample_s=1e-6 * rows
        )
        platform = Platform(name="two cores", host=host)
        now = predict(platform, training)
        found = {
            each.change: each
            for each in advise(platform, training, now, other_terms=[serial], max_changes=20)
        }
        assert (serial[0] in found) == is_named
        if is_named:
            times = stage_times(platform, training, now.assignment)
            sum_s = times.sample_s + times.load_s + times.propagate_s + 3e-4
            assert found[serial[0]].epoch_s == pytest.approx(10 * sum_s)
            assert now.epoch_s == pytest.approx(10 * (times.propagate_s + 3e-4 + 9e-4), rel=0.1)
