"""Layers for heterogeneous graphs: R-GCN, R-GraphSAGE, R-GAT and HGT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, leaky_relu

from hyrt.errors import UnsupportedModelError
from hyrt.nn.architecture import GraphMetadata
from hyrt.nn.hetero.inputs import hetero_linear
from hyrt.nn.hetero.relation_sums import (
    get_relation_split,
    init_uniform,
    numbers_per_destination,
    order_destinations_by_type,
    order_sources_by_type,
    relabel_to_sources,
    sum_over_relations,
)
from hyrt.nn.hetero.segment_attention import (
    add_edge_scores,
    dot_edges,
    gather_segment_rows,
    softmax_per_destination,
    softmax_per_segment,
    weighted_segment_sums,
)
from hyrt.nn.hetero.type_order import permute_rows
from hyrt.nn.layer import Footprint, Layer, Rows
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.linear import linear
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block, RelationSplit


class RgcnLayer(Layer):
    """R-GCN layer (Schlichtkrull et al., ESWC 2018, equation 2).

    It computes sum_r W_r mean_r(x_j) + W_0 x_i + b over the relations r into i, with c_ir = |N_r(i)|. The
    matrices of the relations are unconstrained, linear combinations of `bases` shared matrices (equation 3),
    or block-diagonal with `blocks` blocks, which divides both widths (equation 4). If `low_precision`,
    products are computed in bfloat16.
    """

    takes_relations = True
    multiplies_weights = True
    takes_types = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        shape: GraphMetadata,
        *,
        bases: int = 0,
        blocks: int = 0,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        if bases and blocks:
            raise ValueError("bases and blocks are both set: set only one of them")
        self.in_features, self.out_features, self.shape = in_features, out_features, shape
        self.low_precision = low_precision
        num = shape.num_relations
        self.coefficients: nn.Parameter | None = None
        if blocks:
            for width in (in_features, out_features):
                if width % blocks:
                    raise ValueError(
                        f"width {width} is not a multiple of blocks={blocks}: set blocks to a divisor of "
                        f"{width}"
                    )
            self.weight = nn.Parameter(
                torch.empty(num, blocks, out_features // blocks, in_features // blocks)
            )
        else:
            self.weight = nn.Parameter(torch.empty(bases or num, out_features, in_features))
        if bases:
            self.coefficients = nn.Parameter(torch.empty(num, bases))
            nn.init.xavier_uniform_(self.coefficients)
        self.own = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        init_uniform(self.weight, self.own)

    def relation_weights(self) -> torch.Tensor:
        """Return the matrix of each relation, [R, out, in]."""
        if self.coefficients is not None:
            return torch.einsum("rb,boi->roi", self.coefficients, self.weight)
        if self.weight.ndim == 3:
            return self.weight
        num, blocks, out, width = self.weight.shape
        diagonal = torch.eye(blocks, dtype=self.weight.dtype, device=self.weight.device)
        dense = torch.einsum("rboi,bc->rboci", self.weight, diagonal)
        return dense.reshape(num, blocks * out, blocks * width)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out] from the source rows."""
        total = sum_over_relations(
            *(block, x, self.shape, self.relation_weights(), self.own, self.bias),
            low_precision=self.low_precision,
        )
        return total.relu() if relu else total

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        return Footprint(
            numbers_per_destination(self.in_features, self.out_features, self.shape.num_relations), 4
        )


class RsageLayer(Layer):
    """R-GraphSAGE layer: sum_r W_r mean_r(x_j) + V_t x_i + b over the relations r into i, which has type t.

    GraphSAGE has a matrix for the destination's own row in addition to W_r. The sum of these matrices over
    all relations into a type is a single matrix V_t. If `low_precision`, products are computed in bfloat16.
    """

    takes_relations = True
    multiplies_weights = True
    takes_types = True

    def __init__(
        self, in_features: int, out_features: int, shape: GraphMetadata, *, low_precision: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.shape = in_features, out_features, shape
        self.low_precision = low_precision
        self.weight = nn.Parameter(torch.empty(shape.num_relations, out_features, in_features))
        self.own = nn.Parameter(torch.empty(len(shape.types), out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        init_uniform(self.weight, self.own)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out] from the source rows."""
        total = sum_over_relations(
            *(block, x, self.shape, self.weight, self.own, self.bias), low_precision=self.low_precision
        )
        return total.relu() if relu else total

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        return Footprint(
            numbers_per_destination(self.in_features, self.out_features, self.shape.num_relations), 4
        )


_SLOPE = 0.2


class RgatLayer(Layer):
    """R-GAT layer: sum_r (sum_j a_ij W_r x_j) + V x_i + b per head, over the relations r into i.

    The weights a_ij are the softmax of LeakyReLU(s_r . W_r x_j + d_r . W_r x_i + t_r . e_ij) over the
    neighbours j of i in relation r; the last term is omitted if edges have no features. Heads are
    concatenated, or averaged if `average`. Rows are combined before they are multiplied, as in
    `hyrt.nn.operators.attention`. If `low_precision`, products are computed in bfloat16.
    """

    takes_relations = True

    def __init__(
        self,
        in_features: int,
        head_features: int,
        heads: int,
        shape: GraphMetadata,
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
        """Compute rows [num_dst, out] from rows [num_src, in]."""
        num, heads, _width, _ = self.weight.shape
        block, rows = relabel_to_sources(block, x, self.bias.dtype)
        split = get_relation_split(block, num)
        self_rows = rows[: block.num_dst]
        source_weights = torch.einsum("rhdf,rhd->rhf", self.weight, self.source).flatten(0, 1)
        destination_weights = torch.einsum("rhdf,rhd->rhf", self.weight, self.destination).flatten(0, 1)
        destination_scores = linear(self_rows, destination_weights).view(-1, num, heads)
        segment_scores = torch.cat(
            [
                destination_scores[_index(split.rows[start:stop]), r]
                for r in split.present_relations
                for start, stop in [split.starts[r : r + 2]]
            ]
            or [destination_scores.new_empty((0, heads))]
        )
        sums = add_edge_scores(split, segment_scores, linear(rows, source_weights))
        if self.edge is not None:
            sums = sums + _edge_feature_scores(block, split, self.edge)
        scores = leaky_relu(sums, _SLOPE)
        combined = weighted_segment_sums(split, softmax_per_segment(split, scores), rows[:, None])
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
            total = aggregate(split.sums, flat, "sum", accumulate_into=total)
        return total.relu() if relu else total

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        num, heads, width, in_features = self.weight.shape
        per_edge = 4 * heads + (2 * heads + self.edge_features if self.edge is not None else 0)
        return Footprint(num * heads * (in_features + 3 * width) + 2 * len(self.bias), per_edge)


def _edge_feature_scores(
    block: Block | TensorBlock, split: RelationSplit, weights: torch.Tensor
) -> torch.Tensor:
    """Compute the score term [E, H] of the edge features with weights [R, H, d] per relation."""
    rows = block.edge_rows
    if rows is None:
        raise UnsupportedModelError(
            "this R-GAT reads edge features, but the edges have none: add the key edge_features to the "
            "dataset, with one row per edge"
        )
    features = rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)
    # Sort the features by relation, which is the edge order in `split`.
    in_order = features.to(weights.dtype).index_select(0, _index(split.edges))
    products = [
        linear(in_order[start:stop], weights[relation])
        for relation in split.present_relations
        for start, stop in [split.edge_starts[relation : relation + 2]]
    ]
    return torch.cat(products) if products else in_order.new_zeros((0, weights.shape[1]))


def _index(rows: object) -> torch.Tensor:
    """Convert positions to an index tensor."""
    return rows.long() if isinstance(rows, torch.Tensor) else torch.from_numpy(rows).long()


class HgtLayer(Layer):
    """HGT layer (Hu et al., WWW 2020, equations 3 to 5).

    For a destination i of type t, it combines A_t gelu(sum_j a_ij M_r V_s x_j) with the own row. In each head
    (of width d), the weights a_ij are the softmax of p_r (K_s x_j) T_r (Q_t x_i) / sqrt(d) over the edges of
    all relations into i. K, Q, V and A are linear maps with biases per type, T_r and M_r are matrices per
    relation and head, and p_r is a factor. If input and result have the same width, the own row has the
    weight 1 - sigmoid(g_t) and the aggregate sigmoid(g_t); otherwise the own row is omitted. `hidden` is the
    width of keys, queries and values (default: that of the result). `low_precision` selects bfloat16
    products.
    """

    takes_relations = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int,
        shape: GraphMetadata,
        *,
        hidden: int | None = None,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        hidden = out_features if hidden is None else hidden
        if hidden % heads:
            raise ValueError(f"width {hidden} is not a multiple of {heads} heads")
        self.shape, self.heads, self.low_precision = shape, heads, low_precision
        self.in_features, self.out_features, self.hidden = in_features, out_features, hidden
        types, num, width = len(shape.types), shape.num_relations, hidden // heads
        self.key, self.query, self.value = (
            nn.Parameter(torch.empty(types, hidden, in_features)) for _ in range(3)
        )
        self.result = nn.Parameter(torch.empty(types, out_features, hidden))
        self.key_bias, self.query_bias, self.value_bias = (
            nn.Parameter(torch.zeros(types, hidden)) for _ in range(3)
        )
        self.result_bias = nn.Parameter(torch.zeros(types, out_features))
        self.attention, self.message = (nn.Parameter(torch.empty(num, heads, width, width)) for _ in range(2))
        self.prior = nn.Parameter(torch.ones(num, heads))
        self.gate = nn.Parameter(torch.ones(types)) if in_features == out_features else None
        for stack in (self.key, self.query, self.value, self.result):
            for matrix in stack.data:
                nn.init.xavier_uniform_(matrix)
        for stack in (self.attention, self.message):
            for matrix in stack.data.flatten(0, 1):
                nn.init.xavier_uniform_(matrix)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out] from rows [num_src, in]."""
        heads, width = self.heads, self.hidden // self.heads
        block, rows = relabel_to_sources(block, x, self.key.dtype)
        split = get_relation_split(block, self.shape.num_relations)
        self_rows = rows[: block.num_dst]
        source_order = order_sources_by_type(block, self.shape)
        destination_order = order_destinations_by_type(block, self.shape)
        keys = self._transform_by_type(rows, source_order, self.key, self.key_bias).view(-1, heads, width)
        values = self._transform_by_type(rows, source_order, self.value, self.value_bias).view(
            -1, heads, width
        )
        queries = gather_segment_rows(
            split, self._transform_by_type(self_rows, destination_order, self.query, self.query_bias)
        )
        # There are fewer segments than edges, so transform one query per segment instead of one key per edge.
        transformed_queries = self._transform_by_relation(
            split.sizes, queries, self.attention * self.prior[:, :, None, None] / width**0.5
        )
        weights = softmax_per_destination(
            split, dot_edges(split, transformed_queries.view(-1, heads, width), keys)
        )
        gathered = weighted_segment_sums(split, weights, values).flatten(1)
        messages = self._transform_by_relation(split.sizes, gathered, self.message.transpose(2, 3))
        total = aggregate(split.sums, messages, "sum")
        out = self._transform_by_type(gelu(total), destination_order, self.result, self.result_bias)
        if self.gate is not None:
            type_gates = self.gate.sigmoid().repeat_interleave(
                torch.tensor(destination_order.sizes, device=out.device), output_size=len(self_rows)
            )
            gate = permute_rows(type_gates[:, None], destination_order.inverse, destination_order.order)
            out = gate * out + (1 - gate) * self_rows
        return out.relu() if relu else out

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        runs = self.shape.num_relations * 4 * self.hidden
        return Footprint(runs + 6 * self.hidden + 3 * self.out_features, 4 * self.heads + 2 * self.hidden)

    def _transform_by_type(
        self, x: torch.Tensor, order: object, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Multiply rows by the matrices of their types, without changing their order."""
        sorted_rows = permute_rows(x, order.order, order.inverse)  # type: ignore[attr-defined]
        products = hetero_linear(sorted_rows, order.sizes, weight, bias, low_precision=self.low_precision)  # type: ignore[attr-defined]
        return permute_rows(products, order.inverse, order.order)  # type: ignore[attr-defined]

    def _transform_by_relation(
        self, sizes: list[int], x: torch.Tensor, matrices: torch.Tensor
    ) -> torch.Tensor:
        """Multiply each head of segment rows [P, hidden] by its relation's matrix in [R, H, out, in]."""
        num, heads, width, _ = matrices.shape
        diagonal = torch.eye(heads, dtype=x.dtype, device=x.device)
        dense = torch.einsum("rhoi,hg->rhogi", matrices, diagonal).reshape(num, heads * width, heads * width)
        products = [
            linear(part, dense[r], low_precision=self.low_precision)
            for r, part in enumerate(torch.split(x, sizes))
            if len(part)
        ]
        return torch.cat(products) if products else x
