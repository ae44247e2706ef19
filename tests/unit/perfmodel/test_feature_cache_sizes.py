"""What keeping rows on accelerators does to a step, computed by hand and counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from counted_degrees import degree_distribution
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.initial_assignment import max_units
from hyrt_perfmodel.prediction.predict import advise, predict
from hyrt_perfmodel.prediction.stage_times import StepModel, stage_times
from hyrt_perfmodel.prediction.stages import ExtraTerms
from hyrt_perfmodel.sampler_sizes import CacheHitCurve, expected_hit_rates
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload
from unit.sampling.small_graphs import random_graph

from hyrt.runtime.workers import Workers
from hyrt.sampling.hotness import expected_accesses
from hyrt.sampling.neighbor_sampler import NeighborSampler

# Of 100 targets: 3,000 rows of 200 bytes.
WORK = Workload(vertices=(3000, 800, 100), edges=(4000, 900), features=(50, 20, 10), concat=True)
TRAINING = TrainingWorkload(
    at=proportional_workload(WORK, 100),
    targets_per_epoch=1000,
    batch_size=200,
    feature_bytes=2e6,
    hit_rate=lambda part: math.sqrt(part),
)
GPU = Accelerator(kind="gpu", memory_gb_s=1e3, macs_per_s=1e13, link_gb_s=0.1)
PLATFORM = Platform(name="m", host=Host(memory_gb_s=10.0, macs_per_s=1e12, cores=4), accelerators=(GPU,))
ONE_EACH = Assignment(split=(100, 100), threads=Threads(sample=1, load=1, train=4))


def test_what_is_kept_is_neither_loaded_nor_sent() -> None:
    kept = replace(TRAINING, cached_fraction=0.25)
    before, after = (stage_times(PLATFORM, work, ONE_EACH) for work in (TRAINING, kept))
    # Half of the rows are there; the host reads all of its own.
    assert after.trainer_load_s[0] == before.trainer_load_s[0]
    assert after.trainer_load_s[1] == pytest.approx(before.trainer_load_s[1] / 2)
    saved = 3000 * (200 / 2 - 4) / 1e8
    assert before.transfer_s - after.transfer_s == pytest.approx(saved)
    model = StepModel(PLATFORM, kept, ExtraTerms())
    gpu = PLATFORM.trainers()[1]
    assert model.link_bytes(gpu, WORK) == pytest.approx(3000 * (100 + 4))


def test_kept_rows_take_memory_from_mini_batches() -> None:
    small = replace(GPU, memory_gib=3.5e6 / 2**30)
    trainer = Platform(name="m", host=PLATFORM.host, accelerators=(small,)).trainers()[1]
    counts = [max_units(trainer, replace(TRAINING, cached_fraction=part)) for part in (0.0, 0.5, 1.0)]
    assert 200 > counts[0] > counts[1] > counts[2] > 0
    without = max_units(
        replace(trainer, device=replace(small, memory_gib=2.5e6 / 2**30)),
        replace(TRAINING, cached_fraction=0.0),
    )
    assert counts[1] == without
    small_too = replace(PLATFORM, accelerators=(small,))
    needs = [
        predict(small_too, replace(TRAINING, cached_fraction=part), assignment=ONE_EACH)
        .memory["gpu:0"]
        .needed_bytes
        for part in (0.0, 0.25)
    ]
    assert needs[1] - needs[0] == pytest.approx(0.25 * TRAINING.feature_bytes)


def test_advice_names_caches_where_links_bound() -> None:
    alone = replace(PLATFORM, host=replace(PLATFORM.host, trains=False))
    found = {each.change: each for each in advise(alone, TRAINING, predict(alone, TRAINING), max_changes=20)}
    small, large = (found[f"{p}% of the rows cached on each accelerator (data.cache={p}%)"] for p in (10, 30))
    assert large.epoch_s < small.epoch_s < predict(alone, TRAINING).epoch_s
    kept = replace(TRAINING, cached_fraction=0.3)
    assert predict(alone, kept).epoch_s == pytest.approx(large.epoch_s)
    changes = [each.change for each in advise(alone, kept, predict(alone, kept), max_changes=20)]
    assert not any("data.cache" in change for change in changes)
    unknown = replace(TRAINING, hit_rate=None)
    changes = [each.change for each in advise(alone, unknown, predict(alone, unknown), max_changes=20)]
    assert not any("data.cache" in change for change in changes)


def test_the_curve_of_a_few_vertices() -> None:
    curve = CacheHitCurve.from_classes(np.array([2.0, 1.0, 4.0]), np.array([1.0, 6.0, 0.5]), 10)
    # One vertex of six reads, two of one, four of half a read: ten in all.
    assert [curve(part) for part in (0, 0.1, 0.2, 0.3, 0.7, 1.0)] == pytest.approx([0, 0.6, 0.7, 0.8, 1, 1])
    many = CacheHitCurve.from_classes(np.ones(5000), 1 / np.arange(1, 5001), 5000)
    exact = np.cumsum(1 / np.arange(1, 5001)) / np.sum(1 / np.arange(1, 5001))
    assert [many(count / 5000) for count in (1, 77, 500, 3333)] == pytest.approx(
        [exact[count - 1] for count in (1, 77, 500, 3333)], abs=1e-3
    )


def test_degrees_alone_tell_the_hit_rate() -> None:
    graph = random_graph(4000, 10, seed=6)
    visits = np.zeros(graph.num_vertices)
    with Workers(1, "test.sample") as workers:
        sampler = NeighborSampler(graph, graph.split("train"), [5, 4], 100, 0)
        for step in range(sampler.steps_per_epoch()):
            batch = sampler.sample(step, sampler.units(step), workers, in_place=False)
            visits[batch.blocks[0].sources] += 1
            batch.release()
    curve = expected_hit_rates(degree_distribution(graph), [5, 4], 100)
    everywhere = np.full(graph.num_vertices, 1 / graph.num_vertices)
    reads = expected_accesses(graph.topology, everywhere, [100] * 40, [5, 4])
    best = np.argsort(-reads, kind="stable")
    for part in (0.1, 0.3, 0.6):
        counted = visits[best[: int(part * len(best))]].sum() / visits.sum()
        assert curve(part) == pytest.approx(counted, abs=0.04)
