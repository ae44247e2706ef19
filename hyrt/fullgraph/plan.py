"""A model over a whole graph as a chain: rows, gathering, rows, gathering, rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
import torch

from hyrt.fullgraph.row_stage import RowStage
from hyrt.nn.layer import Layer
from hyrt.nn.layer_parts import LayerParts
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer

# Rows of a chunk: enough that calls of torch cost little beside the work, and few enough for a chunk of wide
# rows to take little memory.
_ROWS = 1 << 14
_NUMBERS = 1 << 22
# As many numbers as such a chunk has are kept of all rows, at most; a layer makes a row several times.
_STEPS = 4

KEPT_PART = 4
"""The part of the machine's memory that what the first layer gathers may take between steps: one in so many.
"""


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """How a model is computed over a whole graph."""

    model: GNN
    parts: tuple[LayerParts, ...]
    """The layers, taken apart."""
    stages: tuple[RowStage, ...]
    """One before each layer's gathering, and one after the last."""
    keeps_first: bool
    """Whether what the first layer gathers of the features is computed once and kept: nothing in it changes
    between steps."""
    reads_in_place: bool
    """Whether the first layer gathers from the feature matrix itself, in every step."""
    chunk_rows: int
    """Rows that a thread computes at a time. It depends on widths alone, so that sums of chunks have the same
    bits for any number of threads."""
    keeps_rows: bool
    """Whether what is computed of rows forward is kept for the backward pass, for it is little. Else it is
    computed again."""
    torch_dtype: torch.dtype
    """Of the model's numbers."""
    dtype: np.dtype[Any]
    """The same for arrays."""


def can_take_apart(model: torch.nn.Module) -> TypeGuard[GNN]:
    """Whether a model is a chain of layers that have parts, over rows of one width, and nothing else."""
    if not isinstance(model, GNN) or is_newer(type(model), "forward", "layer"):
        return False
    if model.architecture.shape is not None:
        return False
    return all(
        isinstance(layer, Layer)
        and not is_newer(type(layer), "forward", "parts")
        and layer.parts(multiply_first=False) is not None
        for layer in model.layers
    )


def plan_chain(
    model: GNN,
    num_vertices: int,
    num_edges: int,
    *,
    is_sparse: bool,
    memory_bytes: int,
    limited: bool = False,
    travels: bool = False,
) -> ChainPlan:
    """Choose how a model is computed over a graph.

    Where a layer makes rows narrower they are multiplied before they are gathered, wherever it can. In the
    first layer the raw features are gathered where this is needed only once: where they are dense, are not
    dropped, and the result fits and has no more numbers than one gathering of products reads.

    Parameters
    ----------
    model
        A model that `can_take_apart`.
    num_vertices, num_edges
        The size of the graph.
    is_sparse
        Whether its features are sparse.
    memory_bytes
        How much may be kept between steps for the first layer.
    limited
        Whether there is a limit for matrices in host memory, which does not count rows that are kept.
    travels
        Whether what is gathered comes from other processes: then it pays to gather raw features, once.
    """
    a = model.architecture
    dtype = next(model.parameters()).dtype
    parts = []
    keeps_first = reads_in_place = False
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        raw = layer.parts(multiply_first=False)
        assert raw is not None
        products = layer.source_weight()
        made = a.widths[i + 1] if products is None else len(products)
        narrower = made < a.widths[i]
        if i == 0:
            gathers_raw = raw.scatter is None and a.input_dropout == 0
            must = layer.source_weight() is None
            numbers = num_vertices * raw.gathered_width
            pays = travels or not narrower or numbers <= num_edges * made
            fits = numbers * dtype.itemsize <= memory_bytes
            keeps_first = gathers_raw and (must or (fits and pays and not is_sparse))
            narrower = not keeps_first and (narrower or is_sparse)
        chosen = layer.parts(multiply_first=narrower)
        assert chosen is not None
        if i == 0:
            reads_in_place = chosen.scatter is None and gathers_raw and not keeps_first
        parts.append(chosen)
    padded: list[LayerParts | None] = [None, *parts, None]
    stages = tuple(
        RowStage(model, i - 1, before, after) for i, (before, after) in enumerate(pairwise(padded))
    )
    widest = max(a.widths[1:] if is_sparse else a.widths)
    chunk_rows = max(1, min(_ROWS, _NUMBERS // widest))
    few = num_vertices * _STEPS * sum(a.widths[1:]) <= _NUMBERS
    return ChainPlan(
        model=model,
        parts=tuple(parts),
        stages=stages,
        keeps_first=keeps_first,
        reads_in_place=reads_in_place,
        chunk_rows=chunk_rows,
        keeps_rows=not limited and (few or num_vertices <= chunk_rows),
        torch_dtype=dtype,
        dtype=np.dtype(str(dtype).removeprefix("torch.")),
    )
