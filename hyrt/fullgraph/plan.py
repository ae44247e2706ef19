"""Decomposition of a model over a full graph into alternating dense stages and gathers."""

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

# Rows of a chunk: enough to amortize the overhead of torch calls, and few enough to bound the memory of wide
# rows.
_ROWS = 1 << 14
_NUMBERS = 1 << 22
# Save activations of all rows only if they have at most this many numbers; a layer saves each row several
# times.
_STEPS = 4

KEPT_PART = 4
"""Divisor of the machine's memory: the cached gather of the first layer may take one part in this many."""


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """How a model is computed over a full graph."""

    model: GNN
    parts: tuple[LayerParts, ...]
    """The decomposed layers."""
    stages: tuple[RowStage, ...]
    """One stage before each layer's gather, and one after the last."""
    keeps_first: bool
    """Whether the first layer's gather of the features is computed once and cached, because it does not
    change between steps.
    """
    reads_in_place: bool
    """Whether the first layer gathers from the feature matrix itself, in every step."""
    chunk_rows: int
    """Rows that a thread computes at a time. Depends only on layer widths, so that sums over chunks have the
    same bits for any number of threads.
    """
    keeps_rows: bool
    """Whether activations of the forward pass are saved for the backward pass, because they are small.
    Otherwise they are recomputed.
    """
    torch_dtype: torch.dtype
    """The dtype of the model."""
    dtype: np.dtype[Any]
    """The same dtype for numpy."""


def can_take_apart(model: torch.nn.Module) -> TypeGuard[GNN]:
    """Return whether a model is a plain chain of layers that have parts, over rows of one width."""
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

    A layer that narrows its rows multiplies before the gather if it can. The first layer gathers raw features
    if this is needed only once: if the features are dense and not dropped out, and the result fits into
    memory and has no more numbers than one gather of products reads.

    Parameters
    ----------
    model
        A model that `can_take_apart`.
    num_vertices, num_edges
        The size of the graph.
    is_sparse
        Whether its features are sparse.
    memory_bytes
        Memory that the first layer's cached gather may take between steps.
    limited
        Whether the host memory budget is limited; saved activations would not count towards it.
    travels
        Whether gathers exchange rows with other processes. It then pays to gather raw features once.
    """
    architecture = model.architecture
    dtype = next(model.parameters()).dtype
    parts = []
    keeps_first = reads_in_place = False
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        raw = layer.parts(multiply_first=False)
        assert raw is not None
        products = layer.source_weight()
        made = architecture.widths[i + 1] if products is None else len(products)
        narrower = made < architecture.widths[i]
        if i == 0:
            gathers_raw = raw.scatter is None and architecture.input_dropout == 0
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
    widest = max(architecture.widths[1:] if is_sparse else architecture.widths)
    chunk_rows = max(1, min(_ROWS, _NUMBERS // widest))
    few = num_vertices * _STEPS * sum(architecture.widths[1:]) <= _NUMBERS
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
