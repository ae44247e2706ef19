"""Largest mini-batch that fits in a task, given the size of the on-chip memory (arena)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hyrt_perfmodel.fpga_design import LANES, num_chunks
from hyrt_perfmodel.platform import Accelerator, Platform
from hyrt_perfmodel.prediction.stage_times import has_single_products
from hyrt_perfmodel.workload import TrainingWorkload, Workload

from hyrt_hls.task_layout import (
    MAX_CHUNKS,
    MAX_LAYERS,
    PANEL_ROWS,
    LayerRecord,
    Region,
    arena_regions,
    row_base,
)

_MAX_HALVINGS = 40


class BankWords(NamedTuple):
    """Number of words per arena bank."""

    sums: int
    """Words in the sum memory: combined rows and output gradients."""
    rows: int
    """Words in the row memory: output rows, and gradients of combined rows."""


def bank_words(pes: int, arena_words: int) -> BankWords:
    """Return the capacity of a design with `pes` banks of `arena_words` words.

    Raises ValueError unless both arguments are positive.
    """
    if min(pes, arena_words) < 1:
        raise ValueError(f"arena: pes and arena_words must be at least 1, got {pes} and {arena_words}")
    sums = row_base(arena_words)
    return BankWords(sums, arena_words - sums)


def needed_words(work: Workload, pes: int) -> BankWords:
    """Return the peak number of words per bank that are live in any step of a launch.

    A matrix is live from the step that writes it to the last step that reads it (`arena_regions`). The result
    is a lower bound: a layout that cannot move matrices may need more. Raises ValueError if the kernels do
    not support the widths.
    """
    matrices = arena_regions(layer_records(work), pes)
    sums = [matrix for matrix in matrices if not matrix.in_row_memory]
    rows = [matrix for matrix in matrices if matrix.in_row_memory]
    return BankWords(_peak_words(sums), _peak_words(rows))


class UnitTooLargeError(ValueError):
    """A single target (or unit of a sampler whose mini-batches cannot be split) does not fit the arena."""

    def __init__(self, needs: str) -> None:
        self.needs = needs
        """Part of a message that follows the name of the unit: the required and the available words."""
        super().__init__(f"arena: one target {needs}: raise arena_words, or lower the fan-outs or widths")


def num_tasks(workload_for: Callable[[float], Workload], targets: int, pes: int, arena_words: int) -> int:
    """Return the number of tasks per mini-batch: the smallest power of two (at most `targets`) that fits.

    `workload_for` returns the workload of a mini-batch with the given number of targets. Raises ValueError if
    the kernels do not support the widths, and UnitTooLargeError if a single target does not fit.
    """
    capacity = bank_words(pes, arena_words)
    for halvings in range(_MAX_HALVINGS):
        count = min(1 << halvings, targets)
        sums, rows = needed_words(workload_for(math.ceil(targets / count)), pes)
        if sums <= capacity.sums and rows <= capacity.rows:
            return count
        if count == targets:
            break
    raise UnitTooLargeError(
        f"needs {sums:,} words of sums and {rows:,} of rows in each of {pes} banks, "
        f"but there are {capacity.sums:,} and {capacity.rows:,}"
    )


def with_task_targets(platform: Platform, training: TrainingWorkload) -> Platform:
    """Return the platform with the largest task size that fits the workload, for FPGAs with a known design.

    If the kernels do not support the layers (attention, two products), predictions use measured rates instead
    of the design. Raises ValueError if a single target does not fit, or rows are too wide.
    """
    if not has_single_products(training.at(1.0)):
        return platform
    accelerators = tuple(_with_max_tasks(each, training) for each in platform.accelerators)
    return replace(platform, accelerators=accelerators)


def _with_max_tasks(accelerator: Accelerator, training: TrainingWorkload) -> Accelerator:
    design, words = accelerator.design, accelerator.arena_words
    if design is None or words is None:
        return accelerator
    # An accelerator computes only part of a step, but the maximum task size does not depend on the part.
    count = num_tasks(training.at, training.batch_size, design.pes, words)
    return replace(accelerator, task_targets=math.ceil(training.batch_size / count))


def check_arena(pes: int, arena_words: int) -> None:
    """Raise ValueError unless an arena can hold one target of a two-layer model of width 128.

    Such an arena has space for one aggregated row of the lower layer per bank. A narrower model might fit a
    smaller arena, but that would save no resources, because an UltraRAM is 4,096 words deep.
    """
    minimum = Workload(
        vertices=(float(pes), float(pes), 1.0),
        edges=(float(pes), float(pes)),
        features=(128,) * 3,
        concat=True,
    )
    num_tasks(lambda targets: minimum, 1, pes, arena_words)


def _peak_words(matrices: Sequence[Region]) -> int:
    return max(
        sum(other.words for other in matrices if other.first_step <= matrix.first_step <= other.last_step)
        for matrix in matrices
    )


def layer_records(work: Workload) -> list[LayerRecord]:
    """Return the layer records of a mini-batch, which contain only sizes (no offsets and no edges).

    Raises ValueError if the kernels do not support the number of layers or their widths.
    """
    if work.layers > MAX_LAYERS:
        raise ValueError(f"the kernels support at most {MAX_LAYERS} layers, but the model has {work.layers}")
    records = []
    for layer in range(1, work.layers + 1):
        parts = 2 if work.concat else 1
        width, out = work.features[layer - 1], work.features[layer]
        if max(width, out) > MAX_CHUNKS * LANES or parts * num_chunks(width) * LANES > PANEL_ROWS:
            raise ValueError(
                f"layer {layer} maps rows of {parts * width} values to {out}, but the kernels support rows "
                f"of at most {MAX_CHUNKS * LANES} values and weights of at most {PANEL_ROWS} rows"
            )
        records.append(
            LayerRecord(
                rows=max(1, math.ceil(work.vertices[layer])),
                parts=parts,
                num_src=max(1, math.ceil(work.vertices[layer - 1])),
                in_chunks=num_chunks(width),
                out_chunks=num_chunks(out),
                relu=layer < work.layers,
                out_width=out,
                in_width=width,
            )
        )
    return records
