"""Whether a mini-batch is one that kernels of a model's sizes can take."""

from __future__ import annotations

import torch

from hyrt.graph.cached.cached_rows import CachedRows
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.nn.inputs import Aggregated
from hyrt.sampling.minibatch import MiniBatch


def input_values(
    batch: MiniBatch,
    *,
    num_layers: int,
    num_classes: int,
    row_width: int,
    aggregated_width: int | None = None,
    narrow: bool = False,
    kept_rows: int = 0,
) -> torch.Tensor | NarrowRows | CachedRows:
    """A mini-batch's input: its rows, or their first aggregate.

    Parameters
    ----------
    batch
        The mini-batch, with at least one target.
    num_layers, num_classes
        Layers and classes of the model.
    row_width
        Width of the input rows.
    aggregated_width
        Width of the first layer's aggregate; None where the device takes rows only.
    narrow
        Whether the device takes rows in a narrow format.
    kept_rows
        How many rows the device keeps, 0 where it takes no `CachedRows`.

    Raises
    ------
    ValueError, TypeError
        If it is not a mini-batch for the model.
    """
    if len(batch.blocks) != num_layers:
        raise ValueError(f"the model has {num_layers} layers, the mini-batch {len(batch.blocks)} blocks")
    if batch.has_classes and (batch.labels.min() < 0 or batch.labels.max() >= num_classes):
        raise ValueError(f"a label is not in 0..{num_classes - 1}")
    first = batch.blocks[0]
    if narrow and isinstance(batch.inputs, NarrowRows):
        return _checked(batch.inputs, (first.num_src, row_width))
    if kept_rows and isinstance(batch.inputs, CachedRows):
        batch.inputs.check(first.num_src, kept_rows, row_width)
        return batch.inputs
    if isinstance(batch.inputs, Aggregated) and aggregated_width is not None:
        wanted, values = (first.num_dst, aggregated_width), batch.inputs.values
    elif isinstance(batch.inputs, torch.Tensor):
        wanted, values = (first.num_src, row_width), batch.inputs
    else:
        raise TypeError(f"inputs are {type(batch.inputs).__name__}, but this device takes rows")
    if tuple(values.shape) != wanted or values.dtype != torch.float32:
        raise ValueError(f"inputs are {values.dtype} of shape {tuple(values.shape)}, not float32 of {wanted}")
    return values


def _checked(rows: NarrowRows, wanted: tuple[int, int]) -> NarrowRows:
    scales = rows.format.scales
    shapes = [None if each is None else each.shape for each in (rows.row_scales, rows.column_scales)]
    right = [wanted[:1] if scales == "row" else None, wanted[1:] if scales == "column" else None]
    if rows.codes.shape != wanted or rows.codes.dtype != rows.format.dtype or shapes != right:
        raise ValueError(
            f"inputs are {rows.codes.dtype} of shape {rows.codes.shape} with scales of {shapes}, "
            f"not rows of {rows.format.name} of {wanted}"
        )
    return rows
