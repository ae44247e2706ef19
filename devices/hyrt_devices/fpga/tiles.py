"""A mini-batch as tasks: one, or, where that does not fit on the chip, tiles of its targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hyrt_hls.parts.resources import KernelDesign
from hyrt_hls.task.layout import Task
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemory
from hyrt.nn.description import ModelDescription
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.fpga.arena import Shortage, lay_out
from hyrt_devices.fpga.task import Piece, WeightedBlock, make_records, make_task, weighted
from hyrt_devices.fpga.weights import LayerShape, layer_shapes
from hyrt_devices.opencl_host.batch_check import input_values


def build_tasks(
    batch: MiniBatch,
    model: ModelDescription,
    limits: KernelDesign,
    device: str = "this device",
    *,
    at_least: int = 1,
) -> list[Task]:
    """Tasks whose scores, loss sums, hits and gradients add up to the mini-batch's.

    Targets are halved until each tile fits into the arena. What tiles have in common, each computes for
    itself: an edge's weight and a dropout mask depend on the mini-batch alone, and sums over targets are sums
    over tiles.

    Parameters
    ----------
    batch
        The mini-batch, with at least one target and with relabelled blocks; its inputs are rows,
        of float32 or in a narrow format.
    model
        The model to compute.
    limits
        The design that the tasks are for.
    device
        The device's name, for messages.
    at_least
        How many tasks are wanted, for as many compute units; each has at least one target.

    Returns
    -------
    In the order of the targets. The weights of each are zeros: the device has its own.

    Raises
    ------
    DeviceOutOfMemory
        If a single target does not fit.
    UnsupportedModel
        As `layer_shapes`.
    ValueError, TypeError
        If it is not a mini-batch for the model.
    """
    shapes = layer_shapes(model, device)
    _check(batch, shapes)
    blocks = [
        weighted(block, layer.aggregation) for block, layer in zip(batch.blocks, model.layers, strict=True)
    ]
    tasks: list[Task] = []
    pieces = min(at_least, len(batch.targets))
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
            raise DeviceOutOfMemory(_too_large(piece, start, records, limits, device), _SMALLER)
    return tasks


_SMALLER = (
    "whatever the size of the mini-batch: sample fewer neighbours (sampler.fanout), use narrower "
    "layers (model.hidden), or omit the device from `devices`"
)


def _too_large(piece: Piece, target: int, missing: Shortage, limits: KernelDesign, device: str) -> str:
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
        narrow=True,
    )
    for block in batch.blocks:
        if block.in_place:
            raise ValueError(f"layer {block.layer}: its block is read in place, but this device takes rows")


def _cut(blocks: Sequence[WeightedBlock], start: int, stop: int) -> Piece:
    """Targets `start` to `stop`, from the last block down with what each layer's destinations need."""
    if (start, stop) == (0, blocks[-1].num_dst):
        return Piece(slice(start, stop), list(blocks), None)
    rows: NDArray[np.intp] = np.arange(start, stop)
    parts: list[WeightedBlock] = []
    for block in reversed(blocks):
        part, rows = _cut_block(block, rows)
        parts.append(part)
    return Piece(slice(start, stop), parts[::-1], rows)


def _cut_block(block: WeightedBlock, rows: NDArray[np.intp]) -> tuple[WeightedBlock, NDArray[np.intp]]:
    """Some destinations of a block; and its sources: these destinations, then the others in order."""
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
        own=None if block.own is None else block.own[rows],
        concat=block.concat,
        num_src=len(sources),
    )
    return part, sources
