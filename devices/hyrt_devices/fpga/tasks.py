"""Division of a mini-batch into tasks that fit the on-chip arena, and creation of their launch arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hyrt_hls.resources import KernelDesign
from hyrt_hls.task_layout import (
    EDGE_INTS,
    ROW_CODES,
    Dropout,
    LayerRecord,
    Region,
    Task,
    TaskHeader,
    arena_regions,
    encode_task,
    row_base,
)
from hyrt_perfmodel.fpga_design import LANES, row_words
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import ModelDescription
from hyrt.nn.operators.aggregate import compute_scales
from hyrt.runtime.rng import DROPOUT, dropout_threshold, stream_key
from hyrt.sampling.block import Block
from hyrt.sampling.kernels import transpose
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.fpga.weights import LayerShape, layer_shapes
from hyrt_devices.opencl_host.batch_check import input_values

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WeightedBlock:
    """Block whose edge weights include all scale factors of an aggregation."""

    indptr: Ints
    """CSR row starts: [num_dst + 1] int32."""
    columns: Ints
    """Source position of each edge: [E] int32. The first sources are the destinations."""
    weights: Floats
    """Weight of each edge: [E] float32."""
    self_weights: Floats | None
    """Weight of each destination's input row, if it is added: [num_dst] float32. None if it is not added."""
    concat: bool
    """Whether the destination's input row is concatenated with the aggregate instead of added."""
    num_src: int

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1


def weighted(block: Block, aggregation: Aggregation) -> WeightedBlock:
    """Multiply a block's edge weights by the scale factors of an aggregation other than `max`."""
    factors = compute_scales(aggregation, block, np.dtype(np.float32))
    columns = block.columns.astype(np.int32, copy=False)
    weights = np.repeat(factors.row, np.diff(block.indptr))
    if factors.source is not None:
        weights *= factors.source[columns]
    if factors.edge is not None:
        weights *= factors.edge
    return WeightedBlock(
        indptr=block.indptr.astype(np.int32, copy=False),
        columns=columns,
        weights=weights,
        self_weights=factors.self_loop,
        concat=aggregation.self_path == "concat",
        num_src=block.num_src,
    )


def edge_sections(block: WeightedBlock) -> tuple[Ints, Ints]:
    """Return the forward (by source row) and backward (by combined row) sections, each [edges, EDGE]."""
    indptr, columns, weights = _add_self_rows(block)
    num_rows = len(indptr) - 1
    # Counting sorts are stable: the second sort, by row, does not change the order of each row's sources.
    by_source, rows, edges = _transposed(indptr, columns, block.num_src)
    forward = _section(by_source, rows, weights[edges])
    by_row, sources, edges = _transposed(by_source, rows, num_rows)
    return forward, _section(by_row, sources, forward[edges, 2].view(np.float32))


def _add_self_rows(block: WeightedBlock) -> tuple[Ints, Ints, Floats]:
    """Return the CSR arrays over the rows of the combined matrix, in which self rows are edges."""
    if block.self_weights is None and not block.concat:
        return block.indptr, block.columns, block.weights
    count = block.num_dst
    starts: Ints = np.add(block.indptr, np.arange(count + 1), dtype=np.int32)
    is_self = np.zeros(len(block.columns) + count, np.bool_)
    is_self[starts[:-1]] = True
    columns = np.empty(len(is_self), np.int32)
    weights = np.ones(len(is_self), np.float32)
    columns[is_self] = np.arange(count, dtype=np.int32)
    columns[~is_self] = block.columns
    weights[~is_self] = block.weights
    if not block.concat:
        weights[is_self] = block.self_weights
        return starts, columns, weights
    indptr = np.empty(2 * count + 1, np.int32)
    indptr[::2] = starts
    indptr[1::2] = starts[:-1] + 1
    return indptr, columns, weights


def _transposed(indptr: Ints, columns: Ints, num_src: int) -> tuple[Ints, Ints, Ints]:
    out_indptr = np.empty(num_src + 1, np.int32)
    rows, edges = np.empty(len(columns), np.int32), np.empty(len(columns), np.int32)
    transpose(indptr, columns, num_src, out_indptr, rows, edges)
    return out_indptr, rows, edges


def _section(indptr: Ints, to: Ints, weights: Floats) -> Ints:
    section = np.zeros((len(to), EDGE_INTS), np.int32)
    section[:, 0] = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    section[:, 1] = to
    section[:, 2] = weights.view(np.int32)
    return section


def make_records(
    blocks: Sequence[WeightedBlock], model: ModelDescription, shapes: Sequence[LayerShape]
) -> list[LayerRecord]:
    """Create layer records that contain only sizes, without edges, dropout and arena offsets."""
    return [
        LayerRecord(
            rows=block.num_dst,
            parts=shape.parts,
            num_src=block.num_src,
            in_chunks=shape.in_chunks,
            out_chunks=shape.out_chunks,
            relu=layer.products[0].relu,
            weights=shape.weights,
            out_width=shape.out_width,
            in_width=shape.in_width,
        )
        for block, layer, shape in zip(blocks, model.layers, shapes, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class BatchTile:
    """Range of a mini-batch's targets, with the parts of all blocks on which these targets depend."""

    targets: slice
    """Positions of the tile's targets in the mini-batch."""
    blocks: list[WeightedBlock]
    sources: NDArray[np.intp] | None
    """Positions of the first block's sources in the mini-batch, [num_src]; None for all in order."""


def make_task(
    batch: MiniBatch,
    model: ModelDescription,
    shapes: Sequence[LayerShape],
    piece: BatchTile,
    records: Sequence[LayerRecord],
) -> Task:
    """Create the arrays of a launch for one tile. The weights are zeros, which the device replaces.

    `records` are the layer records of the tile, with arena offsets.
    """
    features, codes, row_scales = _features(batch.inputs, piece.sources, shapes[0])
    sections: list[Ints] = []
    filled: list[LayerRecord] = []
    at = 0
    for i, (block, record) in enumerate(zip(piece.blocks, records, strict=True)):
        layer = model.layers[i]
        forward, backward = edge_sections(block)
        if i == 0:
            backward = backward[:0]
            if row_scales is not None:
                forward[:, 2].view(np.float32)[:] *= row_scales[forward[:, 0]]
        sections += [forward, backward]
        filled.append(
            replace(
                record,
                dropout=_dropout(layer.dropout, batch.blocks[i], i + 1),
                first_edge=at,
                num_edges=len(forward),
                first_backward_edge=at + len(forward),
                num_backward_edges=len(backward),
            )
        )
        at += len(forward) + len(backward)
    first, last = shapes[0], shapes[-1]
    labels = batch.labels[piece.targets].astype(np.int32)
    target_weights = batch.target_weights
    vertices = batch.blocks[0].sources
    assert vertices is not None
    header = TaskHeader(
        layers=len(shapes),
        targets=len(labels),
        classes=last.out_width,
        num_sources=piece.blocks[0].num_src,
        in_chunks=first.in_chunks,
        in_width=first.in_width,
        dropout=_dropout(model.input_dropout, batch.blocks[0], 0),
        row_codes=codes,
    )
    return Task(
        features=features,
        edges=np.concatenate(sections),
        weights=np.zeros((last.weights + last.words) * LANES, np.float32),
        labels=labels,
        target_weights=(
            np.ones(len(labels), np.float32)
            if target_weights is None
            else np.ascontiguousarray(target_weights[piece.targets])
        ),
        vertices=(vertices if piece.sources is None else vertices[piece.sources]).astype(np.int64),
        task=encode_task(header, filled),
    )


def _dropout(rate: float, block: Block, layer: int) -> Dropout:
    if rate == 0:
        return Dropout()
    threshold, scale = dropout_threshold(rate)
    return Dropout(int(threshold), scale, int(stream_key(block.seed, DROPOUT, block.step, layer)))


def _features(
    inputs: Any, sources: NDArray[np.intp] | None, shape: LayerShape
) -> tuple[Floats | Ints, int, Floats | None]:
    """Return the tile's rows as memory words, their value of `ROW_CODES`, and the row scales."""
    if isinstance(inputs, QuantizedRows) and inputs.format.name in ROW_CODES:
        codes = inputs.codes if sources is None else inputs.codes[sources]
        scales = inputs.row_scales
        if scales is not None and sources is not None:
            scales = scales[sources]
        packed = np.zeros((len(codes), row_words(shape.in_width, codes.itemsize) * LANES), np.int32)
        packed.view(codes.dtype)[:, : shape.in_width] = codes
        return packed, ROW_CODES[inputs.format.name], scales
    # Convert to float32 if necessary: the kernel does not support column scales.
    rows = inputs.to_float32() if isinstance(inputs, QuantizedRows) else inputs.detach().numpy()
    return _padded(rows, sources, shape), ROW_CODES["float32"], None


def _padded(rows: Floats, sources: NDArray[np.intp] | None, shape: LayerShape) -> Floats:
    """Return the tile's rows padded to whole words, without a copy if they need no change."""
    width = shape.in_width
    if sources is None and width == shape.in_chunks * LANES and rows.flags.c_contiguous:
        return rows
    padded = np.empty((len(rows) if sources is None else len(sources), shape.in_chunks * LANES), np.float32)
    padded[:, :width] = rows if sources is None else rows[sources]
    padded[:, width:] = 0
    return padded


@dataclass(frozen=True, slots=True)
class Shortage:
    """Required and available words per bank for a task that does not fit."""

    memory: str
    """Part of the bank that is too small: `sums` or `rows`."""
    needed: int
    available: int


# Orders in which to place matrices: no order is best for all tasks, and each takes only a few microseconds.
_ORDERS: tuple[Callable[[Region], tuple[int, ...]], ...] = (
    lambda region: (-region.words,),
    lambda region: (region.first_step, -region.words),
    lambda region: (region.first_step - region.last_step, -region.words),
)


def lay_out(records: Sequence[LayerRecord], limits: KernelDesign) -> list[LayerRecord] | Shortage:
    """Assign an arena offset to each matrix of a task. Matrices with disjoint lifetimes may share memory.

    `limits` defines the size of the arena. Return the records with offsets, or the shortage.
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
    """Return each matrix's lowest offset that is free during its lifetime, and the total words."""
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
    """Create tasks, in target order, whose scores, losses, hits and gradients add up to the mini-batch's.

    The targets are divided into `min_tasks` tiles, which are halved until each fits the arena. Each tile
    recomputes the rows that it shares with other tiles: edge weights and dropout masks depend only on the
    mini-batch, and sums over targets are sums over tiles. The mini-batch must have at least one target,
    relabelled blocks, and float32 or quantized rows. The weights of the tasks are zeros, which the device
    replaces.

    Raises DeviceOutOfMemoryError if a single target does not fit, UnsupportedModelError as `layer_shapes`
    does, and ValueError or TypeError if the mini-batch does not match the model.
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
    "smaller mini-batches do not help: sample fewer neighbours (sampler.fanout), use narrower "
    "layers (model.hidden), or remove the device from `devices`"
)


def _too_large(piece: BatchTile, target: int, missing: Shortage, limits: KernelDesign, device: str) -> str:
    rows = [block.num_dst for block in piece.blocks]
    return (
        f"{device}: target {target} of the mini-batch by itself, with {piece.blocks[0].num_src} input rows "
        f"and {', '.join(map(str, rows))} rows in layers 1 to {len(rows)}, needs {missing.needed} "
        f"words of {missing.memory} in each of {limits.pes} banks of its on-chip memory, which has "
        f"only {missing.available}"
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
            raise ValueError(
                f"the block of layer {block.layer} is read in place, but this device requires rows"
            )


def _cut(blocks: Sequence[WeightedBlock], start: int, stop: int) -> BatchTile:
    """Return the tile of targets `start` to `stop`, with the sources that each layer needs."""
    if (start, stop) == (0, blocks[-1].num_dst):
        return BatchTile(slice(start, stop), list(blocks), None)
    rows: NDArray[np.intp] = np.arange(start, stop)
    parts: list[WeightedBlock] = []
    for block in reversed(blocks):
        part, rows = _cut_block(block, rows)
        parts.append(part)
    return BatchTile(slice(start, stop), parts[::-1], rows)


def _cut_block(block: WeightedBlock, rows: NDArray[np.intp]) -> tuple[WeightedBlock, NDArray[np.intp]]:
    """Cut destinations out of a block. Its sources are the destinations, then other sources in order."""
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
