"""R-GAT: attention within each relation (Busbridge et al., 2019), summed over relations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import leaky_relu

from hyrt.errors import UnsupportedModel
from hyrt.nn.inputs import Rows
from hyrt.nn.layer import Footprint, Layer
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.product import linear
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.attention.run_attention import edge_sums, softmax_of_runs, weighted_sums
from hyrt.nn.typed.by_relation import by_relation
from hyrt.nn.typed.layers.relation_sums import over_own_sources
from hyrt.nn.typed.typed_shape import TypedShape
from hyrt.sampling.block import Block
from hyrt.sampling.relations.relation_split import RelationSplit

_SLOPE = 0.2


class RgatLayer(Layer):
    """sum_r (sum_j a_ij W_r x_j) + V x_i + b over the relations r into i, for each head.

    The weights a_ij are the softmax over the neighbours j of i in relation r of LeakyReLU(s_r . W_r x_j + d_r
    . W_r x_i + t_r . e_ij); the last term is present only if edges have features. Heads are concatenated, or
    averaged in the last layer. Rows are combined before they are multiplied, as in
    `hyrt.nn.operators.attention`.

    Parameters
    ----------
    in_features
        Width of source rows.
    head_features
        Width of one head's result.
    heads
        Number of heads.
    shape
        The relations.
    edge_features
        Width of the edge features; 0 if there are none.
    average
        Average the heads instead of concatenating them.
    low_precision
        Multiply in bfloat16.
    """

    takes_relations = True

    def __init__(
        self,
        in_features: int,
        head_features: int,
        heads: int,
        shape: TypedShape,
        *,
        edge_features: int = 0,
        average: bool = False,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.shape, self.average = in_features, shape, average
        self.low_precision, self.edge_features = low_precision, edge_features
        num = shape.num_relations
        out = head_features if average else heads * head_features
        self.weight = nn.Parameter(torch.empty(num, heads, head_features, in_features))
        self.source = nn.Parameter(torch.empty(num, heads, head_features))
        self.destination = nn.Parameter(torch.empty(num, heads, head_features))
        self.edge = nn.Parameter(torch.empty(num, heads, edge_features)) if edge_features else None
        self.own = nn.Parameter(torch.empty(out, in_features))
        self.bias = nn.Parameter(torch.zeros(out))
        for matrix in self.weight.data.flatten(1, 2):
            nn.init.xavier_uniform_(matrix)
        for parameter in (*self.source.data, *self.destination.data, self.own.data):
            nn.init.xavier_uniform_(parameter)
        if self.edge is not None:
            for parameter in self.edge.data:
                nn.init.xavier_uniform_(parameter)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute [num_dst, out] from [num_src, in] rows."""
        num, heads, _width, _ = self.weight.shape
        block, rows = over_own_sources(block, x, self.bias.dtype)
        split = by_relation(block, num)
        self_rows = rows[: block.num_dst]
        source_weights = torch.einsum("rhdf,rhd->rhf", self.weight, self.source).flatten(0, 1)
        destination_weights = torch.einsum("rhdf,rhd->rhf", self.weight, self.destination).flatten(0, 1)
        destination_scores = linear(self_rows, destination_weights).view(-1, num, heads)
        segment_scores = torch.cat(
            [
                destination_scores[_index(split.rows[start:stop]), r]
                for r in split.present
                for start, stop in [split.starts[r : r + 2]]
            ]
            or [destination_scores.new_empty((0, heads))]
        )
        sums = edge_sums(split, segment_scores, linear(rows, source_weights))
        if self.edge is not None:
            sums = sums + _edge_feature_scores(block, split, self.edge)
        scores = leaky_relu(sums, _SLOPE)
        combined = weighted_sums(split, softmax_of_runs(split, scores), rows[:, None])
        products = [
            torch.stack(
                [
                    linear(part[:, h], self.weight[r, h], low_precision=self.low_precision)
                    for h in range(heads)
                ],
                1,
            )
            for r, part in enumerate(torch.split(combined, split.sizes))
            if len(part)
        ]
        total = linear(self_rows, self.own, self.bias, low_precision=self.low_precision)
        if products:
            per_head = torch.cat(products)
            flat = per_head.mean(1) if self.average else per_head.flatten(1)
            total = aggregate(split.sums, flat, "sum", onto=total)
        return total.relu() if relu else total

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        num, heads, width, in_features = self.weight.shape
        per_edge = 4 * heads + (2 * heads + self.edge_features if self.edge is not None else 0)
        return Footprint(num * heads * (in_features + 3 * width) + 2 * len(self.bias), per_edge)


def _edge_feature_scores(
    block: Block | TensorBlock, split: RelationSplit, weights: torch.Tensor
) -> torch.Tensor:
    """Compute [E, H] scores of the edge features with the weights [R, H, d] of their relations."""
    rows = block.edge_rows
    if rows is None:
        raise UnsupportedModel(
            "this R-GAT takes features of edges, and these have none: give the dataset the key "
            "edge_features, a row for each edge"
        )
    features = rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)
    # Sorted like the edges of the relations.
    in_order = features.to(weights.dtype).index_select(0, _index(split.edges))
    products = [
        linear(in_order[start:stop], weights[relation])
        for relation in split.present
        for start, stop in [split.edge_starts[relation : relation + 2]]
    ]
    return torch.cat(products) if products else in_order.new_zeros((0, weights.shape[1]))


def _index(rows: object) -> torch.Tensor:
    """Convert positions to a torch index."""
    return rows.long() if isinstance(rows, torch.Tensor) else torch.from_numpy(rows).long()
