"""Tasks are as large as the on-chip memory lets them be, and predictions count them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hyrt_hls.arena_limits import bank_words, needed_words, with_task_targets
from hyrt_perfmodel.fpga_cycles import TaskShape, task_seconds
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.stage_times import stage_times
from hyrt_perfmodel.prediction.stages import PAPER_TERMS, ExtraTerms
from hyrt_perfmodel.workload import TrainingWorkload, proportional_workload

U250 = "xilinx-alveo-u250"
SIZES = {"vertices": (160_000, 22_000, 1024), "edges": (210_000, 24_000), "features": (100, 256, 47)}


def training(kind: str = "graphsage", batch: int = 1024) -> TrainingWorkload:
    work = model_workload(kind, *SIZES.values())  # type: ignore[arg-type]
    return TrainingWorkload(
        at=proportional_workload(work, 1024),
        targets_per_epoch=100_000,
        batch_size=batch,
        sample_s=0.0,
        model=kind,
    )


@pytest.mark.parametrize("batch", [1, 300, 1024, 5000])
@pytest.mark.parametrize("kind", ["graphsage", "gcn"])
def test_a_task_fits_and_twice_as_much_does_not(kind: str, batch: int) -> None:
    work = training(kind, batch)
    (card,) = with_task_targets(load_platform(U250), work).accelerators
    assert card.design is not None
    assert card.arena_words is not None
    assert card.task_targets is not None
    room = bank_words(card.design.pes, card.arena_words)
    sums, rows = needed_words(work.at(card.task_targets), card.design.pes)
    assert sums <= room.sums
    assert rows <= room.rows
    if card.task_targets < batch:
        sums, rows = needed_words(work.at(min(2 * card.task_targets, batch)), card.design.pes)
        assert sums > room.sums or rows > room.rows


def test_a_step_is_its_tasks() -> None:
    work = training(batch=1000)
    platform = with_task_targets(load_platform(U250), work)
    (card,) = platform.accelerators
    assert card.design is not None
    assert card.task_targets is not None
    tasks = math.ceil(1000 / card.task_targets)
    assert tasks > 1
    alone = Assignment(split=(1000,), threads=Threads(sample=1, load=1, train=1))
    times = stage_times(platform, work, alone)
    one = task_seconds(TaskShape.from_workload(work.at(1000 / tasks)), card.design)
    assert times.trainer_propagate_s == (pytest.approx(tasks * one),)
    # The paper's form has rates only, and so has every form without the term.
    rates = stage_times(replace(platform, accelerators=(replace(card, design=None),)), work, alone)
    assert (
        stage_times(platform, work, alone, ExtraTerms(cycles=False)).trainer_propagate_s
        == rates.trainer_propagate_s
    )
    assert (
        stage_times(platform, work, alone, PAPER_TERMS).trainer_propagate_s[0] < times.trainer_propagate_s[0]
    )


@pytest.mark.parametrize("kind", ["gin", "gat"])
def test_layers_that_the_kernels_do_not_know_take_rates(kind: str) -> None:
    platform = load_platform(U250)
    assert with_task_targets(platform, training(kind)) == platform


def test_a_target_that_does_not_fit() -> None:
    platform = load_platform(U250)
    small = replace(platform, accelerators=(replace(platform.accelerators[0], arena_words=8),))
    with pytest.raises(ValueError, match="one target needs"):
        with_task_targets(small, training())
