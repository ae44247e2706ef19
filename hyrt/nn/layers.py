"""Built-in layers, which aggregate rows over a block and then apply a linear map to the destination rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import Product
from hyrt.nn.fused.fused_gather import aggregate_with_loops, attend_with_loops
from hyrt.nn.fused.loop_backend import is_on_device
from hyrt.nn.layer import (
    AggregatedFeatures,
    AttentionSum,
    ColumnShardedFeatures,
    Footprint,
    Layer,
    LayerParts,
    MultipliedFeatures,
    Rows,
    destination_rows,
    source_rows,
)
from hyrt.nn.message_passing.block_gather import relabel_block
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.attention import attend
from hyrt.nn.operators.attention_dropout import AttentionDropout
from hyrt.nn.operators.linear import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block


class ConvolutionLayer(Layer):
    """Aggregation, then a linear map (HyScale-GNN, equations 1 and 2): GraphSAGE, GCN, first half of GIN.

    Sparse rows are multiplied before they are aggregated: this costs one multiply-accumulate per stored value
    and gives the same sums. If `low_precision`, products are computed in bfloat16.
    """

    def __init__(
        self, in_features: int, out_features: int, aggregation: Aggregation, *, low_precision: bool = False
    ) -> None:
        super().__init__()
        self._aggregation = aggregation
        self.in_features = in_features
        self.low_precision = low_precision
        self.weight = nn.Parameter(torch.empty(out_features, aggregation.width(in_features)))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.weight)

    @property
    def aggregation(self) -> Aggregation:
        return self._aggregation

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out] from rows [num_src, in]."""
        if isinstance(x, MultipliedFeatures | SparseRows) and self.aggregation.reduce != "max":
            return self._multiply_first(block, x, relu)
        if isinstance(x, ColumnShardedFeatures):
            total = x.product(self.weight) + self.bias
            return total.relu() if relu else total
        if isinstance(x, AggregatedFeatures):
            combined = x.values
        else:
            combined = _aggregate(block, x, self.aggregation)
        return linear(combined, self.weight, self.bias, relu=relu, low_precision=self.low_precision)

    def source_weight(self) -> torch.Tensor | None:
        return None if self.aggregation.reduce == "max" else self.weight[:, -self.in_features :]

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        out, combined = self.weight.shape
        # If rows are multiplied first, the aggregated sums are the result.
        return Footprint(out if multiplied else combined + out)

    def parts(self, *, multiply_first: bool) -> LayerParts:
        aggregation, out = self.aggregation, len(self.bias)
        concat = aggregation.self_path == "concat"
        gather = replace(aggregation, self_path="none") if concat else aggregation
        if not multiply_first or aggregation.reduce == "max":
            return LayerParts(
                scatter=None,
                message_widths=(self.in_features,),
                gather=gather,
                gathered_width=self.in_features,
                apply=self._update,
                reads_self=concat,
            )
        return LayerParts(
            scatter=lambda rows: (self._multiply(rows, self.weight[:, -self.in_features :]),),
            message_widths=(out,),
            gather=gather,
            gathered_width=out,
            apply=self._add_self_product,
            reads_self=concat,
        )

    def products(self, *, relu: bool) -> tuple[Product, ...]:
        return (Product(self.weight, self.bias, relu),)

    def _multiply(self, rows: torch.Tensor | SparseRows, weight: torch.Tensor) -> torch.Tensor:
        if isinstance(rows, SparseRows):
            return sparse_linear(rows, weight)
        return linear(rows, weight, low_precision=self.low_precision)

    def _update(
        self, gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, *, relu: bool
    ) -> torch.Tensor:
        """Multiply the gathered rows, concatenated with the self rows if the layer reads them."""
        if self_rows is not None:
            dense = self_rows.to_dense() if isinstance(self_rows, SparseRows) else self_rows
            gathered = torch.cat([dense, gathered], 1)
        return linear(gathered, self.weight, self.bias, relu=relu, low_precision=self.low_precision)

    def _add_self_product(
        self, gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, *, relu: bool
    ) -> torch.Tensor:
        """Add the bias and, if the layer reads the self rows, their product to the gathered sums."""
        total = gathered + self.bias
        if self_rows is not None:
            total = total + self._multiply(self_rows, self.weight[:, : self.in_features])
        return total.relu() if relu else total

    def _multiply_first(
        self, block: Block | TensorBlock, x: MultipliedFeatures | SparseRows, relu: bool
    ) -> torch.Tensor:
        aggregation, self_product = self.aggregation, None
        weight: torch.Tensor = self.weight
        if aggregation.self_path == "concat":
            aggregation = replace(aggregation, self_path="none")
            self_weight, weight = torch.split(weight, self.in_features, dim=1)
            rows = destination_rows(block, x)
            assert isinstance(rows, SparseRows)
            self_product = sparse_linear(rows, self_weight)
        products = x.products if isinstance(x, MultipliedFeatures) else sparse_linear(x, weight)
        if isinstance(products, torch.Tensor) and isinstance(block, Block) and is_on_device():
            total = aggregate_with_loops(block, products, aggregation)
            total = total if self_product is None else total + self_product
        else:
            total = aggregate(block, products, aggregation, accumulate_into=self_product)
        total += self.bias
        return total.relu_() if relu else total


def _aggregate(block: Block | TensorBlock, x: Rows, aggregation: Aggregation) -> torch.Tensor:
    """Aggregate rows on the device that runs the calling thread's edge loops, or else on the host."""
    if isinstance(block, Block) and is_on_device():
        block, rows = relabel_block(block, x, torch.float32)
        return aggregate_with_loops(
            block, rows.to_dense() if isinstance(rows, SparseRows) else rows, aggregation
        )
    return aggregate(block, source_rows(x), aggregation)


class SageLayer(ConvolutionLayer):
    """GraphSAGE (Hamilton et al., 2017; equation 4 of HyScale-GNN): W [x_i, mean, sum or max of x_j] + b."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        reduce: Literal["mean", "sum", "max"] = "mean",
        low_precision: bool = False,
    ) -> None:
        if reduce not in ("mean", "sum", "max"):
            raise ValueError(f"reduce is {reduce!r}: choose mean, sum or max for GraphSAGE")
        aggregation = Aggregation(reduce, "concat")
        super().__init__(in_features, out_features, aggregation, low_precision=low_precision)


class GcnLayer(ConvolutionLayer):
    """GCN (Kipf and Welling, 2017; equation 3 of HyScale-GNN) with a self-loop per vertex.

    The result is W sum_j x_j / sqrt((d_i + 1)(d_j + 1)) + b over the neighbours and the self-loop. The
    degrees d are those of the full graph, in sampled blocks too. If k of a destination's d neighbours were
    sampled, their sum (without the self-loop) is multiplied by d / k, so that its expected value is the
    full-graph sum. With all neighbours, it is exactly that sum.
    """

    def __init__(self, in_features: int, out_features: int, *, low_precision: bool = False) -> None:
        super().__init__(in_features, out_features, Aggregation("gcn", "add"), low_precision=low_precision)


class GinLayer(Layer):
    """GIN (Xu et al., ICLR 2019): MLP((1 + epsilon) x_i + sum_j x_j), with a two-layer MLP.

    In sampled blocks, the sum over k of d neighbours is multiplied by d / k, as in `GcnLayer`. `hidden` is
    the width of the MLP's hidden layer, by default the width of the result. A last layer with few classes
    needs a larger one, because large input sums soon make a small number of ReLU units all dead.

    `norm` adds a LayerNorm before the MLP's ReLU. Sums grow with the degree, so without it the scores of the
    last layer would be unbounded. The paper uses a BatchNorm (section 7), with which the result of a vertex
    would depend on its mini-batch.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden: int | None = None,
        epsilon: float = 0.0,
        norm: bool = False,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        hidden = out_features if hidden is None else hidden
        self.low_precision = low_precision
        self.norm = nn.LayerNorm(hidden) if norm else None
        self.inner = ConvolutionLayer(
            in_features, hidden, Aggregation("sum", "add", epsilon), low_precision=low_precision
        )
        self.weight = nn.Parameter(torch.empty(out_features, hidden))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.weight)

    @property
    def aggregation(self) -> Aggregation:
        return self.inner.aggregation

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out] from rows [num_src, in]."""
        hidden = self._normalize(self.inner(block, x, relu=self.norm is None))
        return linear(hidden, self.weight, self.bias, relu=relu, low_precision=self.low_precision)

    def source_weight(self) -> torch.Tensor | None:
        return self.inner.source_weight()

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        normed = 0 if self.norm is None else 2 * len(self.inner.bias)
        return Footprint(self.inner.footprint(multiplied=multiplied).row + normed + len(self.bias))

    def parts(self, *, multiply_first: bool) -> LayerParts:
        inner = self.inner.parts(multiply_first=multiply_first)

        def apply(
            gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, *, relu: bool
        ) -> torch.Tensor:
            hidden = self._normalize(inner.apply(gathered, self_rows, relu=self.norm is None))
            return linear(hidden, self.weight, self.bias, relu=relu, low_precision=self.low_precision)

        return replace(inner, apply=apply)

    def products(self, *, relu: bool) -> tuple[Product, ...]:
        return (*self.inner.products(relu=True), Product(self.weight, self.bias, relu))

    def _normalize(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply norm and ReLU to the MLP's hidden rows, unless the product has applied the ReLU."""
        return hidden if self.norm is None else self.norm(hidden).relu()


class GatLayer(Layer):
    """GAT (Velickovic et al., ICLR 2018) with a self-loop; heads are concatenated, or averaged if `average`.

    The softmax runs over the sampled neighbours of a destination and the destination itself. Its weights
    already sum to 1, so a block's edge weights (GraphSAINT's aggregator normalization) are ignored. `dropout`
    is the dropout rate of the attention weights in training; see `AttentionDropout`.
    """

    def __init__(
        self,
        in_features: int,
        head_features: int,
        heads: int,
        *,
        average: bool = False,
        dropout: float = 0.0,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        self.average = average
        self.dropout = dropout
        self.low_precision = low_precision
        self.weight = nn.Parameter(torch.empty(heads, head_features, in_features))
        self.source = nn.Parameter(torch.empty(heads, head_features))
        self.destination = nn.Parameter(torch.empty(heads, head_features))
        self.bias = nn.Parameter(torch.zeros(head_features if average else heads * head_features))
        nn.init.xavier_uniform_(self.weight.data.view(heads * head_features, in_features))
        nn.init.xavier_uniform_(self.source)
        nn.init.xavier_uniform_(self.destination)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute [num_dst, heads * head_features], or averaged [num_dst, head_features]."""
        heads, width, _ = self.weight.shape
        mask = None
        if self.training and self.dropout > 0:
            mask = AttentionDropout.from_rate(self.dropout, block.seed, block.step, block.layer)
        if isinstance(block, Block) and is_on_device():
            block, rows = relabel_block(block, x, self.weight.dtype)
            by_head = self._products(rows).view(-1, heads, width)
            per_head = attend_with_loops(block, by_head, self.source, self.destination, mask=mask)
        elif isinstance(x, MultipliedFeatures):
            products = x.products.reshape(-1, heads, width)
            per_head = attend(block, products, self.source, self.destination, mask=mask)
        elif isinstance(x, SparseRows | ColumnShardedFeatures):
            weight = self.weight.flatten(0, 1)
            flat = x.product(weight) if isinstance(x, ColumnShardedFeatures) else sparse_linear(x, weight)
            multiplied = flat.view(-1, heads, width)
            per_head = attend(block, multiplied, self.source, self.destination, mask=mask)
        else:
            u_src = torch.einsum("hdf,hd->hf", self.weight, self.source)
            u_dst = torch.einsum("hdf,hd->hf", self.weight, self.destination)
            combined = attend(block, source_rows(x), u_src, u_dst, mask=mask)
            per_head = torch.stack(
                [linear(combined[h], self.weight[h], low_precision=self.low_precision) for h in range(heads)]
            )
        result = per_head.mean(0) if self.average else per_head.transpose(0, 1).reshape(-1, heads * width)
        result = result + self.bias
        return result.relu() if relu else result

    @property
    def adds_self_loops(self) -> bool:
        return True

    def source_weight(self) -> torch.Tensor | None:
        return self.weight.flatten(0, 1)

    def parts(self, *, multiply_first: bool) -> LayerParts:
        heads, width, _ = self.weight.shape
        return LayerParts(
            scatter=self._score,
            message_widths=(heads * width, heads, heads),
            gather=AttentionSum(heads, dropout=self.dropout),
            gathered_width=heads * width,
            apply=self._finish,
        )

    def _products(self, rows: torch.Tensor | SparseRows) -> torch.Tensor:
        """Return the products [n, heads * width] of the rows with the weight."""
        weight = self.weight.flatten(0, 1)
        if isinstance(rows, SparseRows):
            return sparse_linear(rows, weight)
        return linear(rows, weight, low_precision=self.low_precision)

    def _score(self, rows: torch.Tensor | SparseRows) -> tuple[torch.Tensor, ...]:
        """Return the products [n, heads * width], and their scores as sources and as destinations."""
        products = self._products(rows)
        by_head = products.view(-1, *self.source.shape)
        return products, (by_head * self.source).sum(2), (by_head * self.destination).sum(2)

    def _finish(
        self, gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, *, relu: bool
    ) -> torch.Tensor:
        """Concatenate or average the heads, then add the bias."""
        result = gathered.view(-1, *self.source.shape).mean(1) if self.average else gathered
        result = result + self.bias
        return result.relu() if relu else result

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        heads, width, in_features = self.weight.shape
        # Per destination: combined rows and coefficients; products; stacked, averaged or transposed heads;
        # the result with the bias. Per edge: the coefficient and its derivative.
        combined = 0 if multiplied else in_features
        return Footprint(heads * (combined + 2 + 4 * width), 2 * heads)
