"""Graph neural network in plain PyTorch, which `hyrt export` writes together with the weights of a model.

It requires only torch and safetensors:

    from model import load

    model = load("folder")  # the folder with arguments.json and weights.safetensors
    scores = model(x, edge_index)    # model(x, edge_index, edge_weight) if edges had weights

Parameters have the same names and shapes as in hyrt. Scores equal those that hyrt computes over all
neighbours, up to rounding. There is no dropout: for further training, add what your training needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hyrt.report.plain_features import PlainFeatures


def in_degrees(edge_index: Tensor, x: Tensor, edge_weight: Tensor | None) -> Tensor:
    """Compute in-degrees or sums of edge weights, [V, 1] with the dtype of x."""
    weights = x.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight.to(x.dtype)
    return x.new_zeros(x.shape[0]).index_add(0, edge_index[1], weights)[:, None]


def sum_neighbors(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """Sum the source rows of each vertex's edges, weighted by `edge_weight`, [V, f]."""
    rows = x[edge_index[0]]
    if edge_weight is not None:
        rows = rows * edge_weight.to(x.dtype)[:, None]
    return torch.zeros_like(x).index_add(0, edge_index[1], rows)


def normalize_and_sum(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """Compute GCN's degree-scaled sum over the neighbours and the vertex itself, [V, f].

    Each vertex has one self-loop, with its weight in the data or otherwise with weight 1.
    """
    num = x.shape[0]
    source, end = edge_index[0], edge_index[1]
    is_loop = source == end
    weights = x.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight.to(x.dtype)
    loop_weights = x.new_ones(num + 1).scatter(0, torch.where(is_loop, end, num), weights)[:num, None]
    # Collect the self-loops of the data in an extra row, because a mask would give data-dependent shapes.
    end = torch.where(is_loop, num, end)
    degrees = x.new_zeros(num + 1).index_add(0, end, weights)[:num, None] + loop_weights
    scale = degrees.rsqrt()
    rows = (scale * x)[source]
    if edge_weight is not None:
        rows = rows * weights[:, None]
    total = x.new_zeros(num + 1, x.shape[1]).index_add(0, end, rows)[:num]
    return scale * total + loop_weights * x / degrees


class Convolution(nn.Module):
    """Convolution that aggregates neighbours and then multiplies: GraphSAGE, GCN and the first half of GIN.

    `combine` is `mean`, `sum` or `max` of the neighbours, concatenated to the vertex's row; `gcn`, the
    degree-scaled sum with a self-loop; or `gin`, the sum plus the vertex's row.
    """

    def __init__(self, in_features: int, out_features: int, combine: str) -> None:
        super().__init__()
        self.combine = combine
        concatenates = combine in ("mean", "sum", "max")
        self.weight = nn.Parameter(torch.zeros(out_features, in_features * (2 if concatenates else 1)))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        combined = self.aggregate_neighbors(x, edge_index, edge_weight)
        return torch.nn.functional.linear(combined, self.weight, self.bias)

    def aggregate_neighbors(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        """Compute the input of the product, [V, columns of the weight]."""
        if self.combine == "gcn":
            return normalize_and_sum(x, edge_index, edge_weight)
        if self.combine == "gin":
            return x + sum_neighbors(x, edge_index, edge_weight)
        if self.combine == "max":
            ends = edge_index[1][:, None].expand(-1, x.shape[1])
            highest = torch.zeros_like(x).scatter_reduce(
                0, ends, x[edge_index[0]], reduce="amax", include_self=False
            )
            return torch.cat([x, highest], 1)
        total = sum_neighbors(x, edge_index, edge_weight)
        if self.combine == "mean":
            degrees = in_degrees(edge_index, x, edge_weight)
            total = total / torch.where(degrees > 0, degrees, 1)
        return torch.cat([x, total], 1)


class Isomorphism(nn.Module):
    """GIN layer: the sum of the neighbours and the vertex's row, then an MLP with optional LayerNorm."""

    def __init__(self, in_features: int, hidden: int, out_features: int, *, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden) if norm else None
        self.inner = Convolution(in_features, hidden, "gin")
        self.weight = nn.Parameter(torch.zeros(out_features, hidden))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        hidden = self.inner(x, edge_index, edge_weight)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return torch.nn.functional.linear(hidden.relu(), self.weight, self.bias)


class Attention(nn.Module):
    """GAT layer with exactly one self-loop per vertex, whose heads are concatenated or averaged."""

    def __init__(self, in_features: int, head_features: int, heads: int, *, average: bool) -> None:
        super().__init__()
        self.average = average
        self.weight = nn.Parameter(torch.zeros(heads, head_features, in_features))
        self.source = nn.Parameter(torch.zeros(heads, head_features))
        self.destination = nn.Parameter(torch.zeros(heads, head_features))
        self.bias = nn.Parameter(torch.zeros(head_features if average else heads * head_features))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = torch.einsum("vf,hdf->vhd", x, self.weight)
        loops = torch.arange(x.shape[0], device=x.device).expand(2, -1)
        source, end = torch.cat([edge_index, loops], 1)
        source_scores, destination_scores = (rows * self.source).sum(2), (rows * self.destination).sum(2)
        scores = torch.nn.functional.leaky_relu(source_scores[source] + destination_scores[end], 0.2)
        # Self-loops of the data get no attention.
        is_data_loop = torch.cat([edge_index[0] == edge_index[1], loops[0] < 0])
        scores = scores.masked_fill(is_data_loop[:, None], float("-inf"))
        highest = torch.zeros_like(destination_scores).scatter_reduce(
            0, end[:, None].expand_as(scores), scores, reduce="amax", include_self=False
        )
        weights = (scores - highest[end]).exp()
        total = torch.zeros_like(destination_scores).index_add(0, end, weights)
        share = weights / total[end]
        result = torch.zeros_like(rows).index_add(0, end, share[:, :, None] * rows[source])
        return (result.mean(1) if self.average else result.flatten(1)) + self.bias


class PlainGNN(nn.Module):
    """GNN whose hidden layers are followed by residual, LayerNorm and ReLU, as the arguments specify.

    Parameters
    ----------
    kind
        `graphsage`, `gcn`, `gin` or `gat`.
    hidden
        Width of hidden layers; for GAT, of all heads together.
    aggregate
        Aggregation of GraphSAGE: `mean`, `sum` or `max`.
    heads
        Number of attention heads of GAT.
    norm
        `layer` or `none`.
    residual
        Whether a hidden layer's input is added to its output.
    """

    def __init__(
        self,
        *,
        kind: str,
        in_features: int,
        hidden: int,
        num_classes: int,
        layers: int,
        aggregate: str = "mean",
        heads: int = 4,
        norm: str = "none",
        residual: bool = False,
    ) -> None:
        super().__init__()
        widths = [in_features, *[hidden] * (layers - 1), num_classes]
        self.features = PlainFeatures(in_features)
        self.classes: list[str] | None = None
        self.layers = nn.ModuleList()
        for i in range(layers):
            into, out, last = widths[i], widths[i + 1], i == layers - 1
            if kind == "gin":
                self.layers.append(Isomorphism(into, hidden, out, norm=norm == "layer"))
            elif kind == "gat":
                self.layers.append(Attention(into, out if last else out // heads, heads, average=last))
            else:
                self.layers.append(Convolution(into, out, "gcn" if kind == "gcn" else aggregate))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers - 1 if norm == "layer" else 0))
        self.shortcuts = nn.ModuleList(
            nn.Identity() if widths[i] == hidden else nn.Linear(widths[i], hidden, bias=False)
            for i in range(layers - 1 if residual else 0)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Compute the scores of all vertices, [V, num_classes], with columns in the order of `model.classes`.

        Parameters
        ----------
        x
            [V, in_features] unscaled feature rows; the model scales them. If the columns have a different
            order, pass `model.features.ordered(x, names)`.
        edge_index
            [2, E] int64, source and destination of each edge. GCN and GAT count one self-loop per vertex,
            with or without self-loops here; GraphSAGE and GIN take self-loops as edges.
        edge_weight
            [E] edge weights, if the model was trained with weights; attention and maximum ignore them.
        """
        x = self.features(x)
        for i, layer in enumerate(self.layers):
            has_edge_weights = not isinstance(layer, Attention)
            layer_input, x = (
                x,
                layer(x, edge_index, edge_weight) if has_edge_weights else layer(x, edge_index),
            )
            if i == len(self.layers) - 1:
                break
            if len(self.shortcuts):
                x = x + self.shortcuts[i](layer_input)
            if len(self.norms):
                x = self.norms[i](x)
            x = x.relu()
        return x


def load(folder: str | Path) -> PlainGNN:
    """Load the model from a folder written by `hyrt export`, in evaluation mode."""
    from safetensors.torch import load_file

    arguments: dict[str, Any] = json.loads((Path(folder) / "arguments.json").read_text(encoding="utf-8"))
    model = PlainGNN(**arguments["model"])
    model.features, model.classes = PlainFeatures(**arguments["features"][""]), arguments["classes"]
    model.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
    return model.eval()
