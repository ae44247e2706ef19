"""Checks of a mini-batch's input rows, and a minimal mini-batch for warm-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.feature_cache import CachedRows
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.layer import AggregatedFeatures
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch


def input_values(
    batch: MiniBatch,
    *,
    num_layers: int,
    num_classes: int,
    row_width: int,
    aggregated_width: int | None = None,
    quantized: bool = False,
    cached_rows: int = 0,
) -> torch.Tensor | QuantizedRows | CachedRows:
    """Check a mini-batch with at least one target, and return its inputs: rows or their first aggregate.

    `aggregated_width` is None if the device accepts only rows. `cached_rows` is the number of rows in the
    device's feature cache, or 0 if the device does not accept `CachedRows`. Raises ValueError or TypeError if
    the mini-batch does not match the model.
    """
    if len(batch.blocks) != num_layers:
        raise ValueError(
            f"the model has {num_layers} layers, but the mini-batch has {len(batch.blocks)} blocks"
        )
    if batch.has_classes and (batch.labels.min() < 0 or batch.labels.max() >= num_classes):
        raise ValueError(f"a label is not from 0 to {num_classes - 1}")
    first = batch.blocks[0]
    if quantized and isinstance(batch.inputs, QuantizedRows):
        return _checked(batch.inputs, (first.num_src, row_width))
    if cached_rows and isinstance(batch.inputs, CachedRows):
        batch.inputs.check(first.num_src, cached_rows, row_width)
        return batch.inputs
    if isinstance(batch.inputs, AggregatedFeatures) and aggregated_width is not None:
        expected, values = (first.num_dst, aggregated_width), batch.inputs.values
    elif isinstance(batch.inputs, torch.Tensor):
        expected, values = (first.num_src, row_width), batch.inputs
    else:
        raise TypeError(f"inputs are {type(batch.inputs).__name__}, but this device requires rows")
    if tuple(values.shape) != expected or values.dtype != torch.float32:
        raise ValueError(
            f"inputs are {values.dtype} of shape {tuple(values.shape)}, expected float32 of shape {expected}"
        )
    return values


def _checked(rows: QuantizedRows, shape: tuple[int, int]) -> QuantizedRows:
    scales = rows.format.scales
    shapes = [None if each is None else each.shape for each in (rows.row_scales, rows.column_scales)]
    right = [shape[:1] if scales == "row" else None, shape[1:] if scales == "column" else None]
    if rows.codes.shape != shape or rows.codes.dtype != rows.format.dtype or shapes != right:
        raise ValueError(
            f"inputs are {rows.codes.dtype} of shape {rows.codes.shape} with scales of shapes "
            f"{shapes}, expected {rows.format.name} rows of shape {shape}"
        )
    return rows


def smallest_batch(layers: int, width: int, labels: NDArray[Any]) -> MiniBatch:
    """Return a mini-batch with these labels of one target, whose only neighbour in every layer is itself."""
    one = np.ones(1, np.int32)
    vertex = np.zeros(1, np.int32)
    blocks = [
        Block(
            indptr=np.array([0, 1], np.int32),
            columns=vertex,
            destinations=vertex,
            sources=vertex,
            num_src=1,
            degrees=one,
            source_degrees=one,
            layer=layer,
        )
        for layer in range(1, layers + 1)
    ]
    return MiniBatch(0, vertex, blocks, labels, None, 1.0, torch.zeros(1, width))
