"""Division of a mini-batch into tasks that fit the on-chip arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hyrt_hls.resources import KernelDesign
from hyrt_hls.task_layout import LayerRecord, Region, Task, arena_regions, row_base
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.nn.description import ModelDescription
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.fpga.task import BatchTile, WeightedBlock, make_records, make_task, weighted
from hyrt_devices.fpga.weights import LayerShape, layer_shapes
from hyrt_devices.opencl_host.batch_check import input_values


@dataclass(frozen=True, slots=True)
class Shortage:
    """Needed and available words per bank of a task that does not fit."""

    memory: str
    """`sums` or `rows`, the two parts of a bank."""
    needed: int
    available: int


# Placement orders of matrices: no order is best for all tasks, and each costs a few microseconds.
_ORDERS: tuple[Callable[[Region], tuple[int, ...]], ...] = (
    lambda region: (-region.words,),
    lambda region: (region.first_step, -region.words),
    lambda region: (region.first_step - region.last_step, -region.words),
)


def lay_out(records: Sequence[LayerRecord], limits: KernelDesign) -> list[LayerRecord] | Shortage:
    """Assign an arena offset to every matrix of a task; matrices with disjoint lifetimes may share memory.

    `limits` defines the arena. Returns the records with new offsets, or the shortage.
    """
    base = row_base(limits.arena_words)
    regions = arena_regions(records, limits.pes)
    offsets: list[dict[str, Any]] = [{} for _ in records]
    for of_rows, first, end in ((False, 0, base), (True, base, limits.arena_words)):
        mine = [region for region in regions if region.in_row_memory == of_rows]
        places, height = min(
            (_stack(sorted(mine, key=order)) for order in _ORDERS), key=lambda stacked: stacked[1]
        )
        if height > end - first:
            return Shortage("rows" if of_rows else "sums", height, end - first)
        for (layer, matrix), offset in places.items():
            offsets[layer][matrix] = first + offset
    return [replace(record, **where) for record, where in zip(records, offsets, strict=True)]


def _stack(resident: Sequence[Region]) -> tuple[dict[tuple[int, str], int], int]:
    """Return each matrix's offset, the lowest one free during its lifetime, and the total height in words."""
    places: dict[tuple[int, str], int] = {}
    height = 0
    for number, region in enumerate(resident):
        offset = 0
        overlapping = [
            r
            for r in resident[:number]
            if r.first_step <= region.last_step and region.first_step <= r.last_step
        ]
        for other in sorted(overlapping, key=lambda r: places[r.layer, r.matrix]):
            if offset + region.words <= places[other.layer, other.matrix]:
                break
            offset = max(offset, places[other.layer, other.matrix] + other.words)
        places[region.layer, region.matrix] = offset
        height = max(height, offset + region.words)
    return places, height


def build_tasks(
    batch: MiniBatch,
    model: ModelDescription,
    limits: KernelDesign,
    device: str = "this device",
    *,
    min_tasks: int = 1,
) -> list[Task]:
    """Build tasks whose scores, loss sums, hits and gradients add up to the mini-batch's, in target order.

    Targets are divided into `min_tasks` tiles, which are halved until each one fits into the arena.
    Each tile recomputes the rows that it shares with other tiles: edge weights and dropout masks depend only
    on the mini-batch, and sums over targets are sums over tiles. The mini-batch needs at least one target,
    relabelled blocks, and rows in float32 or quantized. The weights of the tasks are zeros: the device holds
    the weights.

    Raises DeviceOutOfMemoryError if a single target does not fit, UnsupportedModelError like `layer_shapes`,
    and ValueError or TypeError if the mini-batch does not match the model.
    """
    shapes = layer_shapes(model, device)
    _check(batch, shapes)
    blocks = [
        weighted(block, layer.aggregation) for block, layer in zip(batch.blocks, model.layers, strict=True)
    ]
    tasks: list[Task] = []
    pieces = min(min_tasks, len(batch.targets))
    ends = [len(batch.targets) * (i + 1) // pieces for i in range(pieces)]
    waiting = list(zip([0, *ends[:-1]], ends, strict=True))[::-1]
    while waiting:
        start, stop = waiting.pop()
        piece = _cut(blocks, start, stop)
        records = lay_out(make_records(piece.blocks, model, shapes), limits)
        if not isinstance(records, Shortage):
            task = make_task(batch, model, shapes, piece, records)
            task.check(limits.arena_words, limits.pes)
            tasks.append(task)
        elif stop - start > 1:
            middle = (start + stop) // 2
            waiting += [(middle, stop), (start, middle)]
        else:
            raise DeviceOutOfMemoryError(_too_large(piece, start, records, limits, device), _SMALLER)
    return tasks


_SMALLER = (
    "whatever the size of the mini-batch: sample fewer neighbours (sampler.fanout), use narrower "
    "layers (model.hidden), or omit the device from `devices`"
)


def _too_large(piece: BatchTile, target: int, missing: Shortage, limits: KernelDesign, device: str) -> str:
    rows = [block.num_dst for block in piece.blocks]
    return (
        f"{device}: target {target} of the mini-batch alone, with {piece.blocks[0].num_src} input rows "
        f"and {', '.join(map(str, rows))} rows in layers 1 to {len(rows)}, needs {missing.needed} "
        f"words of {missing.memory} in each of {limits.pes} banks of its on-chip memory, which have "
        f"{missing.available}"
    )


def _check(batch: MiniBatch, shapes: Sequence[LayerShape]) -> None:
    input_values(
        batch,
        num_layers=len(shapes),
        num_classes=shapes[-1].out_width,
        row_width=shapes[0].in_width,
        quantized=True,
    )
    for block in batch.blocks:
        if block.in_place:
            raise ValueError(f"layer {block.layer}: its block is read in place, but this device takes rows")


def _cut(blocks: Sequence[WeightedBlock], start: int, stop: int) -> BatchTile:
    """Cut out targets `start` to `stop`, with the sources of each layer, from the last block to the first."""
    if (start, stop) == (0, blocks[-1].num_dst):
        return BatchTile(slice(start, stop), list(blocks), None)
    rows: NDArray[np.intp] = np.arange(start, stop)
    parts: list[WeightedBlock] = []
    for block in reversed(blocks):
        part, rows = _cut_block(block, rows)
        parts.append(part)
    return BatchTile(slice(start, stop), parts[::-1], rows)


def _cut_block(block: WeightedBlock, rows: NDArray[np.intp]) -> tuple[WeightedBlock, NDArray[np.intp]]:
    """Cut destinations out of a block; the sources are these destinations, then other sources in order."""
    counts = np.diff(block.indptr)[rows]
    indptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    edges = np.arange(indptr[-1]) + np.repeat(block.indptr[rows] - indptr[:-1], counts)
    columns = block.columns[edges]
    is_new = np.zeros(block.num_src, np.bool_)
    is_new[columns] = True
    is_new[rows] = False
    sources = np.concatenate([rows, np.flatnonzero(is_new)])
    position = np.empty(block.num_src, np.int32)
    position[sources] = np.arange(len(sources), dtype=np.int32)
    part = WeightedBlock(
        indptr=indptr,
        columns=position[columns],
        weights=block.weights[edges],
        self_weights=None if block.self_weights is None else block.self_weights[rows],
        concat=block.concat,
        num_src=len(sources),
    )
    return part, sources
