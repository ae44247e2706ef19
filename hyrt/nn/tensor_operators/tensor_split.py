"""Edges of a tensor block, divided by relation."""

from __future__ import annotations

import torch

from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.relations.relation_split import RelationSplit


def split_tensors(block: TensorBlock, num_relations: int) -> RelationSplit:
    """Divide a block's edges by relation with torch's operators, like `split_block` on the host."""
    types = block.edge_types
    assert types is not None, "the blocks of a typed graph have the relations of edges"
    device, rows = block.columns.device, block.rows()
    # Edges of a destination are sorted by relation, so one stable sort puts segments in order.
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
