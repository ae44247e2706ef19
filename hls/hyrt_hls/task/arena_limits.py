"""How large a mini-batch a trainer takes in one task: what its arena and its buffers leave room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hyrt_perfmodel.cycles.design import LANES, num_chunks
from hyrt_perfmodel.platforms.platform import Accelerator, Platform
from hyrt_perfmodel.prediction.stage_times import is_plain
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

from hyrt_hls.task.layout import MOST_CHUNKS, MOST_LAYERS, PANEL_ROWS, LayerRecord, Region, regions, row_base

_MOST_HALVINGS = 40


class BankWords(NamedTuple):
    """Words of each bank of an arena."""

    sums: int
    """Words for combined rows and gradients of outputs."""
    rows: int
    """Words for outputs and gradients of combined rows."""


def bank_words(pes: int, arena_words: int) -> BankWords:
    """What a design with `pes` banks of `arena_words` words has.

    Raises
    ------
    ValueError
        If a number is not above 0.
    """
    if min(pes, arena_words) < 1:
        raise ValueError(f"arena: {pes} banks of {arena_words} words: give at least 1 of each")
    sums = row_base(arena_words)
    return BankWords(sums, arena_words - sums)


def needed_words(work: Workload, pes: int) -> BankWords:
    """Words of a bank that a task keeps at the same time: the most over the steps of its launch.

    Every matrix lives from the step that writes it to the last that reads it (`layout.regions`). No layout
    takes less, and one that cannot move a matrix may take more.

    Raises
    ------
    ValueError
        If the widths are beyond what a trainer takes.
    """
    kept = regions(layer_records(work), pes)
    sums = [each for each in kept if not each.of_rows]
    rows = [each for each in kept if each.of_rows]
    return BankWords(_peak(sums), _peak(rows))


class UnitTooLarge(ValueError):
    """Not even one target fits, or one unit of a sampler whose mini-batches cannot be cut further."""

    def __init__(self, needs: str) -> None:
        self.needs = needs
        """What it needs of the arena and what there is, as words that follow its name."""
        super().__init__(f"arena: one target {needs}: raise arena_words, or lower the fan-outs or widths")


def tiles(at: Callable[[float], Workload], targets: int, pes: int, arena_words: int) -> int:
    """Into how many tasks a mini-batch is cut, halved until each fits.

    Parameters
    ----------
    at
        Sizes of a mini-batch by its targets.
    targets
        Targets of the whole mini-batch.
    pes, arena_words
        Banks of the design, and words of each.

    Raises
    ------
    ValueError
        If the widths are beyond what a trainer takes; `UnitTooLarge` if not even one target fits.
    """
    room = bank_words(pes, arena_words)
    for halvings in range(_MOST_HALVINGS):
        count = min(1 << halvings, targets)
        sums, rows = needed_words(at(math.ceil(targets / count)), pes)
        if sums <= room.sums and rows <= room.rows:
            return count
        if count == targets:
            break
    raise UnitTooLarge(
        f"needs {sums:,} words of sums and {rows:,} of rows in each of {pes} banks, "
        f"but there are {room.sums:,} and {room.rows:,}"
    )


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


def check_arena(pes: int, arena_words: int) -> None:
    """Refuse an arena too small for one target of two layers of 128 values with a row of each bank below.

    A narrower model's mini-batch might fit, but smaller arenas than this take as much of a card: an UltraRAM
    is 4,096 words deep.

    Raises
    ------
    ValueError
        If it is too small, with what it would need.
    """
    least = Workload(
        vertices=(float(pes), float(pes), 1.0),
        edges=(float(pes), float(pes)),
        features=(128,) * 3,
        concat=True,
    )
    tiles(lambda targets: least, 1, pes, arena_words)


def _peak(kept: Sequence[Region]) -> int:
    return max(sum(other.words for other in kept if other.born <= each.born <= other.dies) for each in kept)


def layer_records(work: Workload) -> list[LayerRecord]:
    """The layers of a mini-batch with their sizes; places and edges are left out.

    Raises
    ------
    ValueError
        If there are more layers, or wider ones, than a trainer takes.
    """
    if work.layers > MOST_LAYERS:
        raise ValueError(f"a trainer takes at most {MOST_LAYERS} layers, not {work.layers}")
    found = []
    for layer in range(1, work.layers + 1):
        parts = 2 if work.concat else 1
        width, out = work.features[layer - 1], work.features[layer]
        if max(width, out) > MOST_CHUNKS * LANES or parts * num_chunks(width) * LANES > PANEL_ROWS:
            raise ValueError(
                f"layer {layer} maps rows of {parts * width} values to {out}: a trainer takes rows of "
                f"at most {MOST_CHUNKS * LANES} values and weights of at most {PANEL_ROWS} rows"
            )
        found.append(
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
    return found
