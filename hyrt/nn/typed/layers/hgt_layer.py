"""HGT: the heterogeneous graph transformer (Hu et al., WWW 2020)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu

from hyrt.nn.inputs import Rows
from hyrt.nn.layer import Footprint, Layer
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.product import linear
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.attention.run_attention import (
    edge_dots,
    rows_of_runs,
    softmax_of_destinations,
    weighted_sums,
)
from hyrt.nn.typed.by_relation import by_relation
from hyrt.nn.typed.input_maps import typed_linear
from hyrt.nn.typed.layers.relation_sums import destinations_by_type, over_own_sources, sources_by_type
from hyrt.nn.typed.permuted_rows import permuted
from hyrt.nn.typed.typed_shape import TypedShape
from hyrt.sampling.block import Block


class HgtLayer(Layer):
    """A_t gelu(sum_j a_ij M_r V_s x_j) and the own row, for a destination i of type t.

    The weights a_ij are the softmax over all edges into i, of all relations, of p_r (K_s x_j) T_r (Q_t x_i) /
    sqrt(d), for each head, of width d. K, Q, V and A are linear maps per type with biases; T_r and M_r are
    matrices per relation and head, and p_r is a factor (equations 3 to 5). If the input and the result have
    the same width, the own row has weight 1 - sigmoid(g_t) and the aggregate sigmoid(g_t); otherwise the own
    row is omitted.

    Parameters
    ----------
    in_features, out_features
        Widths of source rows and of the result.
    heads
        Number of heads, a divisor of the hidden width.
    shape
        The types and relations.
    hidden
        Width of keys, queries and values; the width of the result by default.
    low_precision
        Multiply in bfloat16.
    """

    takes_relations = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int,
        shape: TypedShape,
        *,
        hidden: int | None = None,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        hidden = out_features if hidden is None else hidden
        if hidden % heads:
            raise ValueError(f"the width {hidden} is not a multiple of {heads} heads")
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
        """Compute [num_dst, out] from [num_src, in] rows."""
        heads, width = self.heads, self.hidden // self.heads
        block, rows = over_own_sources(block, x, self.key.dtype)
        split = by_relation(block, self.shape.num_relations)
        self_rows = rows[: block.num_dst]
        source_order = sources_by_type(block, self.shape)
        destination_order = destinations_by_type(block, self.shape)
        keys = self._transform_by_type(rows, source_order, self.key, self.key_bias).view(-1, heads, width)
        values = self._transform_by_type(rows, source_order, self.value, self.value_bias).view(
            -1, heads, width
        )
        queries = rows_of_runs(
            split, self._transform_by_type(self_rows, destination_order, self.query, self.query_bias)
        )
        # Transform queries per segment instead of keys per edge: there are fewer segments than edges.
        transformed_queries = self._transform_by_relation(
            split.sizes, queries, self.attention * self.prior[:, :, None, None] / width**0.5
        )
        weights = softmax_of_destinations(
            split, edge_dots(split, transformed_queries.view(-1, heads, width), keys)
        )
        gathered = weighted_sums(split, weights, values).flatten(1)
        messages = self._transform_by_relation(split.sizes, gathered, self.message.transpose(2, 3))
        total = aggregate(split.sums, messages, "sum")
        out = self._transform_by_type(gelu(total), destination_order, self.result, self.result_bias)
        if self.gate is not None:
            type_gates = self.gate.sigmoid().repeat_interleave(
                torch.tensor(destination_order.sizes, device=out.device), output_size=len(self_rows)
            )
            gate = permuted(type_gates[:, None], destination_order.places, destination_order.order)
            out = gate * out + (1 - gate) * self_rows
        return out.relu() if relu else out

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        runs = self.shape.num_relations * 4 * self.hidden
        return Footprint(runs + 6 * self.hidden + 3 * self.out_features, 4 * self.heads + 2 * self.hidden)

    def _transform_by_type(
        self, x: torch.Tensor, order: object, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Multiply rows by the matrices of their types, preserving their order."""
        sorted_rows = permuted(x, order.order, order.places)  # type: ignore[attr-defined]
        products = typed_linear(sorted_rows, order.sizes, weight, bias, low_precision=self.low_precision)  # type: ignore[attr-defined]
        return permuted(products, order.places, order.order)  # type: ignore[attr-defined]

    def _transform_by_relation(
        self, sizes: list[int], x: torch.Tensor, matrices: torch.Tensor
    ) -> torch.Tensor:
        """Multiply each head of segment rows [P, hidden] by its relation's matrix of [R, H, out, in]."""
        num, heads, width, _ = matrices.shape
        diagonal = torch.eye(heads, dtype=x.dtype, device=x.device)
        dense = torch.einsum("rhoi,hg->rhogi", matrices, diagonal).reshape(num, heads * width, heads * width)
        products = [
            linear(part, dense[r], low_precision=self.low_precision)
            for r, part in enumerate(torch.split(x, sizes))
            if len(part)
        ]
        return torch.cat(products) if products else x
