"""Sum over relations of the neighbours' mean times the matrix of the relation.

The result of a destination i is sum_r W_r mean_j x_j + V x_i + b over the relations r into i. The mean is
over the neighbours j of i in r.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hyrt.nn.architecture import GraphMetadata
from hyrt.nn.hetero.inputs import HeteroSources, TypeSources, hetero_linear
from hyrt.nn.hetero.type_order import order_by_type, order_tensors_by_type, permute_rows
from hyrt.nn.layer import Rows, destination_rows, source_rows
from hyrt.nn.message_passing.block_gather import relabel_block
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.autograd import empty_array
from hyrt.nn.operators.linear import grouped_linear, linear
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block, RelationSplit, split_block


def split_tensor_block(block: TensorBlock, num_relations: int) -> RelationSplit:
    """Divide the edges of a block by relation with torch operators, like `split_block` on the host."""
    types = block.edge_types
    assert types is not None, "blocks of a heterogeneous graph have edge relations"
    device, rows = block.columns.device, block.rows()
    # The edges of each destination are sorted by relation, so one stable sort produces the segment order.
    edge_relations, edges = torch.sort(types.long(), stable=True)
    keys = edge_relations * block.num_dst + rows[edges]
    segment_keys, counts = torch.unique_consecutive(keys, return_counts=True)
    relations, segment_rows = segment_keys // max(1, block.num_dst), segment_keys % max(1, block.num_dst)
    borders = torch.arange(num_relations + 1, device=device)
    starts = torch.searchsorted(relations, borders).tolist()
    edge_starts = torch.searchsorted(edge_relations, borders).tolist()
    zero = torch.zeros(1, dtype=torch.long, device=device)
    sorted_rows, order = torch.sort(segment_rows, stable=True)
    row_indptr = torch.searchsorted(sorted_rows, torch.arange(block.num_dst + 1, device=device))
    segments = TensorBlock(
        indptr=torch.cat([zero, counts.cumsum(0)]),
        columns=block.columns[edges],
        sources=block.sources,
        num_dst=len(segment_keys),
        degrees=counts.int(),
        source_degrees=block.source_degrees,
        layer=block.layer,
        step=block.step,
        seed=block.seed,
    )
    if block.run_weights is not None and block.edge_weights is not None:
        segments.weights = None if block.weights is None else block.weights[edges]
        segments.edge_weights = block.edge_weights[edges]
        segments.weighted_degrees = block.run_weights[edges[segments.indptr[:-1]]]
        segments.source_weighted_degrees = block.source_weighted_degrees
    sums = TensorBlock(
        indptr=row_indptr,
        columns=order,
        sources=segment_rows,
        num_dst=block.num_dst,
        degrees=(row_indptr[1:] - row_indptr[:-1]).int(),
        source_degrees=segments.degrees,
        layer=block.layer,
        step=block.step,
        seed=block.seed,
    )
    return RelationSplit(segments, sums, segment_rows, edges, starts, edge_starts)


def get_relation_split(block: Block | TensorBlock, num_relations: int) -> RelationSplit:
    """Return a block's edges by relation, cached and shared by all blocks with the same edges.

    `block.edge_types` has the relations, by which the edges of each destination are sorted.
    """
    if isinstance(block, TensorBlock):
        if block.derived.relations is None:
            block.derived.relations = split_tensor_block(block, num_relations)
        relations: RelationSplit = block.derived.relations
        return relations
    keeper = block if block.format_cache is None else block.format_cache
    if keeper.relations is None:
        keeper.relations = split_block(block, num_relations)
    cached: RelationSplit = keeper.relations
    return cached


# Number of multiplications that take as long as reading one value of a row with random access.
_READ = 4


def sum_over_relations(
    block: Block | TensorBlock,
    x: Rows,
    shape: GraphMetadata,
    weights: torch.Tensor,
    self_weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    low_precision: bool = False,
) -> torch.Tensor:
    """Sum each relation's neighbour mean times its matrix, plus the product of the own row: [num_dst, out].

    `weights` [R, out, in] are the matrices of the relations. `self_weight` is [out, in] for all destinations,
    or [T, out, in] for each type. If `low_precision`, products are computed in bfloat16.
    """
    split = get_relation_split(block, shape.num_relations)
    if isinstance(x, HeteroSources):
        total = _multiply_unprojected_self_rows(
            block, x, shape, self_weight, bias, low_precision=low_precision
        )
    else:
        total = _multiply_self_rows(block, x, shape, self_weight, bias, low_precision=low_precision)
    if not split.present_relations:
        return total
    if isinstance(x, HeteroSources):
        results = _multiply_unprojected_segments(split, x, shape, weights, low_precision=low_precision)
    else:
        results = _multiply_segments(split, source_rows(x), weights, low_precision=low_precision)
    return aggregate(split.sums, results, "sum", accumulate_into=total)


def _multiply_segments(
    split: RelationSplit, x: Any, weights: torch.Tensor, *, low_precision: bool
) -> torch.Tensor:
    """Multiply the mean of each segment by the matrix of its relation; return [P, out]."""
    out, width = weights.shape[1:]
    matrices, present = weights.unbind(), split.present_relations
    first = [
        r for r in present if isinstance(x, torch.Tensor) and _multiplies_first(split, r, len(x), out, width)
    ]
    if not first:
        means = torch.split(aggregate(split.runs, x, "mean"), split.sizes)
        return grouped_linear([(means[r], matrices[r], None) for r in present], low_precision=low_precision)
    results = []
    for r in present:
        if r in first:
            products = linear(x, matrices[r], low_precision=low_precision)
            results.append(aggregate(split.relation_block(r), products, "mean"))
        else:
            mean = aggregate(split.relation_block(r), x, "mean")
            results.append(linear(mean, matrices[r], low_precision=low_precision))
    return torch.cat(results)


def _multiplies_first(split: RelationSplit, relation: int, num_src: int, out: int, width: int) -> bool:
    """Return whether multiplying all sources takes less time than reading wider rows along the edges."""
    edges = split.edge_starts[relation + 1] - split.edge_starts[relation]
    runs = split.sizes[relation]
    return out < width and num_src * width * out < runs * width * out + _READ * edges * (width - out)


def _multiply_unprojected_segments(
    split: RelationSplit,
    x: HeteroSources,
    shape: GraphMetadata,
    weights: torch.Tensor,
    *,
    low_precision: bool,
) -> torch.Tensor:
    """Compute `_multiply_segments` for unprojected rows: project the means instead of the rows."""
    results, matrices = [], weights.unbind()
    for r in split.present_relations:
        source = shape.relations[r][0]
        part = x.parts[source]
        if x.starts is None:
            block = restrict_to_type(split.relation_block(r), x.order, source)
        else:
            block = _restrict_in_place(split.relation_block(r), part, int(x.starts[source]))
        mean = aggregate(block, part.rows, "mean")
        weight, bias = _compose(matrices[r], part.weight, part.bias)
        if bias is not None and block.weighted_degrees is not None:
            # The weights of sampled neighbours do not sum to 1, so the bias must be multiplied by their sum.
            shares = aggregate(block, part.rows.new_ones(len(part.rows), 1), "mean")
            mean, weight, bias = torch.cat([mean, shares], 1), torch.cat([weight, bias[:, None]], 1), None
        results.append((mean, weight, bias))
    return grouped_linear(results, low_precision=low_precision)


def _restrict_in_place(block: Block, part: TypeSources, start: int) -> Block:
    """Return a block with sources of one type, whose columns are indices into the type's table."""
    columns = empty_array(block.num_edges, np.int32)
    np.subtract(block.columns, start, out=columns, casting="same_kind")
    sources = None
    if part.positions is not None:
        # Embedding rows have been gathered, since they have a gradient.
        sources, where = part.positions
        columns = where[np.searchsorted(sources, columns)]
    return replace(
        block, columns=columns, sources=sources, num_src=len(part.rows), _transposed=None
    ).trusted()


def restrict_to_type(block: Any, order: Any, source: int) -> Any:
    """Restrict a block to sources of one type, with columns that are indices into the rows of the type."""
    source_positions = order.positions_of_type(source)
    if isinstance(block, TensorBlock):
        columns = order.inverse[block.columns.long()] - order.starts[source]
        return block.with_edges(block.num_dst, columns=columns, sources=source_positions)
    columns = empty_array(block.num_edges, np.int32)
    np.take(order.inverse, block.columns, out=columns, mode="clip")
    columns -= order.starts[source]
    return replace(
        block, columns=columns, sources=source_positions, num_src=len(source_positions), _transposed=None
    ).trusted()


def _compose(
    weight: torch.Tensor, before: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the matrix and the bias of the composition of two linear maps."""
    if before is None:
        return weight, None
    return weight @ before, None if bias is None else weight @ bias


def _multiply_self_rows(
    block: Block | TensorBlock,
    x: Rows,
    shape: GraphMetadata,
    self_weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    low_precision: bool,
) -> torch.Tensor:
    rows = destination_rows(block, x)
    assert isinstance(rows, torch.Tensor)
    if self_weight.ndim == 2:
        return linear(rows, self_weight, bias, low_precision=low_precision)
    order = order_destinations_by_type(block, shape)
    sorted_rows = permute_rows(rows, order.order, order.inverse)
    results = hetero_linear(sorted_rows, order.sizes, self_weight, None, low_precision=low_precision)
    return permute_rows(results, order.inverse, order.order) + bias


def order_sources_by_type(block: Any, shape: GraphMetadata) -> Any:
    """Return the order of a block's sources by type."""
    return _sort_by_type(block, shape, block.sources)


def relabel_to_sources(block: Any, x: Rows, dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    """Relabel a block that is read in place, and gather its source rows [num_src, in]."""
    if isinstance(block, TensorBlock):
        assert isinstance(x, torch.Tensor)
        return block, x
    block, rows = relabel_block(block, x, dtype)
    assert isinstance(rows, torch.Tensor), "rows of one width are dense in heterogeneous graphs"
    return block, rows


def order_destinations_by_type(block: Any, shape: GraphMetadata) -> Any:
    """Return the order of a block's destinations by type."""
    return _sort_by_type(block, shape, block.destinations)


def _sort_by_type(block: Any, shape: GraphMetadata, ids: Any) -> Any:
    if isinstance(block, TensorBlock):
        return order_tensors_by_type(shape.starts.tolist(), ids)
    return order_by_type(shape.starts, ids)


def _multiply_unprojected_self_rows(
    block: Block | TensorBlock,
    x: HeteroSources,
    shape: GraphMetadata,
    self_weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    low_precision: bool,
) -> torch.Tensor:
    """Compute `_multiply_self_rows` for unprojected rows."""
    order = order_destinations_by_type(block, shape) if x.starts is None else x.order
    results = []
    self_weights = [self_weight] * len(x.parts) if self_weight.ndim == 2 else list(self_weight.unbind())
    for number, (part, size) in enumerate(zip(x.parts, order.sizes, strict=True)):
        if not size:
            continue
        # Destinations precede all other sources, also among the sources of one type.
        rows = part.rows[:size] if part.destination_rows is None else part.destination_rows
        weight, before = _compose(self_weights[number], part.weight, part.bias)
        results.append((rows, weight, bias if before is None else before + bias))
    products = grouped_linear(results, low_precision=low_precision)
    return permute_rows(products, order.inverse, order.order)


def init_uniform(*parameters: torch.nn.Parameter) -> None:
    """Initialize matrices [..., out, in] from U(-1, 1) / sqrt(in), like the linear layers of torch.

    The products of all relations and of the own row are added. With the larger Glorot initialization,
    accuracy on synthetic:hetero is 2 points lower (benchmarks/2026-11-25-typed.md).
    """
    with torch.no_grad():
        for parameter in parameters:
            parameter.uniform_(-1, 1).div_(parameter.shape[-1] ** 0.5)


def numbers_per_destination(width: int, out: int, num_relations: int) -> int:
    """Return the values per destination: means and products of all relations, and of the own row."""
    return (num_relations + 1) * (width + 2 * out)
