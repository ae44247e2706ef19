"""Mean of each relation's neighbours, multiplied by the relation's matrix and summed over relations.

For a destination i it is sum_r W_r mean_j x_j + V x_i + b over the relations r into i, with the mean over the
neighbours j of i in r. Means have one row per segment, which is the edges of one relation into one
destination: means are computed before the product, so no array has a row per edge, and source rows are
multiplied first only if that is less work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hyrt.nn.inputs import Rows, own_rows, source_rows
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.product import linear
from hyrt.nn.operators.result_memory import empty_array
from hyrt.nn.saga.blocks.over_block import relabelled
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.by_relation import by_relation
from hyrt.nn.typed.input_maps import typed_linear
from hyrt.nn.typed.permuted_rows import permuted
from hyrt.nn.typed.stacked_products import stacked_products
from hyrt.nn.typed.tensor_order import order_tensors_by_type
from hyrt.nn.typed.type_order import order_by_type
from hyrt.nn.typed.typed_input import TypedSources, TypePart
from hyrt.nn.typed.typed_shape import TypedShape
from hyrt.sampling.block import Block
from hyrt.sampling.relations.relation_split import RelationSplit

# Number of multiplications that take as long as reading one value of a row at a random address.
_READ = 4


def relation_sums(
    block: Block | TensorBlock,
    x: Rows,
    shape: TypedShape,
    weights: torch.Tensor,
    own: torch.Tensor,
    bias: torch.Tensor,
    *,
    low_precision: bool = False,
) -> torch.Tensor:
    """Sum the relations' means times their matrices, and add the product of the own row.

    Parameters
    ----------
    block
        A block of a heterogeneous graph.
    x
        Rows of its sources.
    shape
        Types and relations.
    weights
        [R, out, in] the matrices of the relations.
    own
        [out, in] for all destinations, or [T, out, in] by their types.
    bias
        [out].
    low_precision
        Multiply in bfloat16.

    Returns
    -------
    [num_dst, out].
    """
    split = by_relation(block, shape.num_relations)
    if isinstance(x, TypedSources):
        total = _multiply_unprojected_self_rows(block, x, shape, own, bias, low_precision=low_precision)
    else:
        total = _multiply_self_rows(block, x, shape, own, bias, low_precision=low_precision)
    if not split.present:
        return total
    if isinstance(x, TypedSources):
        results = _multiply_unprojected_segments(split, x, shape, weights, low_precision=low_precision)
    else:
        results = _multiply_segments(split, source_rows(x), weights, low_precision=low_precision)
    return aggregate(split.sums, results, "sum", onto=total)


def _multiply_segments(
    split: RelationSplit, x: Any, weights: torch.Tensor, *, low_precision: bool
) -> torch.Tensor:
    """Compute the mean of each segment times its relation's matrix, [P, out]."""
    out, width = weights.shape[1:]
    matrices, present = weights.unbind(), split.present
    first = [
        r for r in present if isinstance(x, torch.Tensor) and _multiplies_first(split, r, len(x), out, width)
    ]
    if not first:
        means = torch.split(aggregate(split.runs, x, "mean"), split.sizes)
        return stacked_products([(means[r], matrices[r], None) for r in present], low_precision=low_precision)
    results = []
    for r in present:
        if r in first:
            products = linear(x, matrices[r], low_precision=low_precision)
            results.append(aggregate(split.of(r), products, "mean"))
        else:
            mean = aggregate(split.of(r), x, "mean")
            results.append(linear(mean, matrices[r], low_precision=low_precision))
    return torch.cat(results)


def _multiplies_first(split: RelationSplit, relation: int, num_src: int, out: int, width: int) -> bool:
    """Return whether multiplying all sources is less work than reading their wider rows along the edges."""
    edges = split.edge_starts[relation + 1] - split.edge_starts[relation]
    runs = split.sizes[relation]
    return out < width and num_src * width * out < runs * width * out + _READ * edges * (width - out)


def _multiply_unprojected_segments(
    split: RelationSplit, x: TypedSources, shape: TypedShape, weights: torch.Tensor, *, low_precision: bool
) -> torch.Tensor:
    """Compute `_multiply_segments` over unprojected rows: the means are projected instead of the rows."""
    results, matrices = [], weights.unbind()
    for r in split.present:
        source = shape.relations[r][0]
        part = x.parts[source]
        if x.starts is None:
            block = of_type(split.of(r), x.order, source)
        else:
            block = _restrict_in_place(split.of(r), part, int(x.starts[source]))
        mean = aggregate(block, part.rows, "mean")
        weight, bias = _compose(matrices[r], part.weight, part.bias)
        if bias is not None and block.weighted_degrees is not None:
            # Weights of sampled neighbours do not sum to 1: scale the projection's bias by their sum.
            shares = aggregate(block, part.rows.new_ones(len(part.rows), 1), "mean")
            mean, weight, bias = torch.cat([mean, shares], 1), torch.cat([weight, bias[:, None]], 1), None
        results.append((mean, weight, bias))
    return stacked_products(results, low_precision=low_precision)


def _restrict_in_place(block: Block, part: TypePart, start: int) -> Block:
    """Return a block whose sources have one type, with columns into the table of that type."""
    columns = empty_array(block.num_edges, np.int32)
    np.subtract(block.columns, start, out=columns, casting="same_kind")
    sources = None
    if part.places is not None:
        # Embedding rows were gathered and have a gradient.
        sources, where = part.places
        columns = where[np.searchsorted(sources, columns)]
    return replace(
        block, columns=columns, sources=sources, num_src=len(part.rows), _transposed=None
    ).trusted()


def of_type(block: Any, order: Any, source: int) -> Any:
    """Restrict a block's sources to one type, with columns into the rows of that type."""
    source_positions = order.of(source)
    if isinstance(block, TensorBlock):
        columns = order.places[block.columns.long()] - order.starts[source]
        return block.part_of(block.num_dst, columns=columns, sources=source_positions)
    columns = empty_array(block.num_edges, np.int32)
    np.take(order.places, block.columns, out=columns, mode="clip")
    columns -= order.starts[source]
    return replace(
        block, columns=columns, sources=source_positions, num_src=len(source_positions), _transposed=None
    ).trusted()


def _compose(
    weight: torch.Tensor, before: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compose two linear maps into one: return its matrix and bias."""
    if before is None:
        return weight, None
    return weight @ before, None if bias is None else weight @ bias


def _multiply_self_rows(
    block: Block | TensorBlock,
    x: Rows,
    shape: TypedShape,
    own: torch.Tensor,
    bias: torch.Tensor,
    *,
    low_precision: bool,
) -> torch.Tensor:
    rows = own_rows(block, x)
    assert isinstance(rows, torch.Tensor)
    if own.ndim == 2:
        return linear(rows, own, bias, low_precision=low_precision)
    order = destinations_by_type(block, shape)
    sorted_rows = permuted(rows, order.order, order.places)
    results = typed_linear(sorted_rows, order.sizes, own, None, low_precision=low_precision)
    return permuted(results, order.places, order.order) + bias


def sources_by_type(block: Any, shape: TypedShape) -> Any:
    """Sort a block's sources by type."""
    return _sort_by_type(block, shape, block.sources)


def over_own_sources(block: Any, x: Rows, dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    """Relabel a block that is read in place, and gather the rows of its sources, [num_src, in]."""
    if isinstance(block, TensorBlock):
        assert isinstance(x, torch.Tensor)
        return block, x
    block, rows = relabelled(block, x, dtype)
    assert isinstance(rows, torch.Tensor), "rows of a typed graph are dense when they have one width"
    return block, rows


def destinations_by_type(block: Any, shape: TypedShape) -> Any:
    """Sort a block's destinations by type."""
    return _sort_by_type(block, shape, block.destinations)


def _sort_by_type(block: Any, shape: TypedShape, ids: Any) -> Any:
    if isinstance(block, TensorBlock):
        return order_tensors_by_type(shape.starts.tolist(), ids)
    return order_by_type(shape.starts, ids)


def _multiply_unprojected_self_rows(
    block: Block | TensorBlock,
    x: TypedSources,
    shape: TypedShape,
    own: torch.Tensor,
    bias: torch.Tensor,
    *,
    low_precision: bool,
) -> torch.Tensor:
    """Compute `_multiply_self_rows` over unprojected rows."""
    order = destinations_by_type(block, shape) if x.starts is None else x.order
    results = []
    self_weights = [own] * len(x.parts) if own.ndim == 2 else list(own.unbind())
    for number, (part, size) in enumerate(zip(x.parts, order.sizes, strict=True)):
        if not size:
            continue
        # Destinations are the first sources, and therefore the first sources of their type.
        rows = part.rows[:size] if part.own is None else part.own
        weight, before = _compose(self_weights[number], part.weight, part.bias)
        results.append((rows, weight, bias if before is None else before + bias))
    products = stacked_products(results, low_precision=low_precision)
    return permuted(products, order.places, order.order)


def start_small(*parameters: torch.nn.Parameter) -> None:
    """Initialise matrices [..., out, in] from U(-1, 1) / sqrt(in), like torch's linear layers.

    The products of all relations and of the own row are added: with the larger Glorot initialisation,
    accuracy on synthetic:typed is 2 points lower (benchmarks/2026-11-25-typed.md).
    """
    with torch.no_grad():
        for parameter in parameters:
            parameter.uniform_(-1, 1).div_(parameter.shape[-1] ** 0.5)


def footprint_row(width: int, out: int, num_relations: int) -> int:
    """Count values per destination: a mean and its product per relation, the own row and its product."""
    return (num_relations + 1) * (width + 2 * out)
