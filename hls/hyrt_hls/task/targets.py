"""How many targets the FPGAs of a platform train in one task, from what their on-chip memory holds."""

from __future__ import annotations

import math
from dataclasses import replace

from hyrt_perfmodel.platforms.platform import Accelerator, Platform
from hyrt_perfmodel.prediction.stage_times import is_plain
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt_hls.task.arena_limits import tiles


def with_task_targets(platform: Platform, training: TrainingWorkload) -> Platform:
    """The platform whose FPGAs of a known design take tasks as large as fit, for this work.

    Where the kernels do not know the layers (attention, two products) a design says nothing, and rates are
    used.

    Raises
    ------
    ValueError
        If not even one target fits, or rows are wider than a trainer takes.
    """
    if not is_plain(training.at(1.0)):
        return platform
    accelerators = tuple(_with_tasks(each, training) for each in platform.accelerators)
    return replace(platform, accelerators=accelerators)


def _with_tasks(accelerator: Accelerator, training: TrainingWorkload) -> Accelerator:
    design, words = accelerator.design, accelerator.arena_words
    if design is None or words is None:
        return accelerator
    # Fewer than a whole step's is what an accelerator gets, but the largest task is the same.
    count = tiles(training.at, training.batch_size, design.pes, words)
    return replace(accelerator, task_targets=math.ceil(training.batch_size / count))
