"""Conversion of a mini-batch, or of some of its targets, into the arrays of one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hyrt_hls.task_layout import EDGE_INTS, ROW_CODES, Dropout, LayerRecord, Task, TaskHeader, encode_task
from hyrt_perfmodel.fpga_design import LANES, row_words
from numpy.typing import NDArray

from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import ModelDescription
from hyrt.nn.operators.aggregate import compute_scales
from hyrt.runtime.rng import DROPOUT, dropout_threshold, stream_key
from hyrt.sampling.block import Block
from hyrt.sampling.kernels import transpose
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.fpga.weights import LayerShape

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WeightedBlock:
    """Block whose edge weights include all factors of an aggregation."""

    indptr: Ints
    """[num_dst + 1] int32."""
    columns: Ints
    """[E] int32 source positions; destinations are the first sources."""
    weights: Floats
    """[E] float32."""
    self_weights: Floats | None
    """[num_dst] float32 weights of the destinations' added input rows; None if they are not added."""
    concat: bool
    """Whether the destination's input row is concatenated with the aggregate instead."""
    num_src: int

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1


def weighted(block: Block, aggregation: Aggregation) -> WeightedBlock:
    """Fold the scale factors of an aggregation into a block's edge weights; not possible for `max`."""
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
    """Return the forward (by source row) and backward (by combined row) sections: [edges, EDGE] each."""
    indptr, columns, weights = _add_self_rows(block)
    num_rows = len(indptr) - 1
    # A stable counting sort by source; a second one by row keeps each row's sources in order.
    by_source, rows, edges = _transposed(indptr, columns, block.num_src)
    forward = _section(by_source, rows, weights[edges])
    by_row, sources, edges = _transposed(by_source, rows, num_rows)
    return forward, _section(by_row, sources, forward[edges, 2].view(np.float32))


def _add_self_rows(block: WeightedBlock) -> tuple[Ints, Ints, Floats]:
    """Return the CSR over the rows of the combined matrix, with the self rows included as edges."""
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
    """Create layer records with sizes; edges, dropout and arena offsets are filled in later."""
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
    """Range of a mini-batch's targets, with all blocks that the targets depend on."""

    targets: slice
    """Range of positions in the mini-batch's targets."""
    blocks: list[WeightedBlock]
    sources: NDArray[np.intp] | None
    """[num_src] positions of the first block's sources in the mini-batch; None for all sources in order."""


def make_task(
    batch: MiniBatch,
    model: ModelDescription,
    shapes: Sequence[LayerShape],
    piece: BatchTile,
    records: Sequence[LayerRecord],
) -> Task:
    """Build the arrays of a launch for one tile; its weights are zeros, which the device replaces.

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
    """Return the tile's rows in memory words, their format number in `ROW_CODES`, and the row scales."""
    if isinstance(inputs, QuantizedRows) and inputs.format.name in ROW_CODES:
        codes = inputs.codes if sources is None else inputs.codes[sources]
        scales = inputs.row_scales
        if scales is not None and sources is not None:
            scales = scales[sources]
        packed = np.zeros((len(codes), row_words(shape.in_width, codes.itemsize) * LANES), np.int32)
        packed.view(codes.dtype)[:, : shape.in_width] = codes
        return packed, ROW_CODES[inputs.format.name], scales
    # The kernel does not support column scales.
    rows = inputs.to_float32() if isinstance(inputs, QuantizedRows) else inputs.detach().numpy()
    return _padded(rows, sources, shape), ROW_CODES["float32"], None


def _padded(rows: Floats, sources: NDArray[np.intp] | None, shape: LayerShape) -> Floats:
    """Return the tile's rows padded to whole words; the mini-batch's array itself if no change is needed."""
    width = shape.in_width
    if sources is None and width == shape.in_chunks * LANES and rows.flags.c_contiguous:
        return rows
    padded = np.empty((len(rows) if sources is None else len(sources), shape.in_chunks * LANES), np.float32)
    padded[:, :width] = rows if sources is None else rows[sources]
    padded[:, width:] = 0
    return padded
