"""Heterogeneous GNN in plain PyTorch, which `hyrt export` writes together with the weights of a model.

It requires only torch and safetensors:

    from model import load

    model = load("folder")  # the folder with arguments.json and weights.safetensors
    scores = model({"paper": x}, {("paper", "cites", "paper"): edge_index})["paper"]

Vertex types and relations are the same as in the training graph, in PyG's form (`data.x_dict` and
`data.edge_index_dict`). Parameters have the same names and shapes as in hyrt. Scores equal those that hyrt
computes over all neighbours, up to rounding. There is no dropout: for further training, add what your
training needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hyrt.report.plain_features import PlainFeatures

Edges = Sequence[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]
"""Sources, destinations, weights (None for 1) and features of each relation's edges, sorted by type."""


def sum_at(rows: Tensor, ends: Tensor, count: int) -> Tensor:
    """Sum the rows of edges at their destinations, [count, ...]."""
    return rows.new_zeros(count, *rows.shape[1:]).index_add(0, ends, rows)


def edge_softmax(scores: Tensor, ends: Tensor, count: int) -> Tensor:
    """Compute the softmax of edge scores over the edges with the same destination, [E, heads]."""
    highest = scores.new_zeros(count, scores.shape[1]).scatter_reduce(
        0, ends[:, None].expand_as(scores), scores, reduce="amax", include_self=False
    )
    weights = (scores - highest[ends]).exp()
    return weights / sum_at(weights, ends, count)[ends]


def transform_by_type(
    rows: Tensor, sizes: Sequence[int], weights: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Multiply rows, which are ordered by type, by the matrix of their type."""
    parts = [part @ weights[t].T for t, part in enumerate(torch.split(rows, list(sizes)))]
    if bias is not None:
        parts = [part + bias[t] for t, part in enumerate(parts)]
    return torch.cat(parts)


class RelationMeans(nn.Module):
    """R-GCN and R-GraphSAGE layer: transformed neighbour means per relation, plus the vertex's row.

    With `self_by_type`, each vertex type has a separate matrix for the vertex's row. `bases` or `blocks` is
    the number of basis matrices or diagonal blocks that form a relation's matrix; 0 for none.
    """

    def __init__(
        self,
        into: int,
        out: int,
        types: int,
        relations: int,
        *,
        self_by_type: bool,
        bases: int = 0,
        blocks: int = 0,
    ) -> None:
        super().__init__()
        shape = (
            (relations, blocks, out // blocks, into // blocks) if blocks else (bases or relations, out, into)
        )
        self.weight = nn.Parameter(torch.zeros(shape))
        self.coefficients = nn.Parameter(torch.zeros(relations, bases)) if bases else None
        self.own = nn.Parameter(torch.zeros((types, out, into) if self_by_type else (out, into)))
        self.bias = nn.Parameter(torch.zeros(out))

    def matrix(self, relation: int) -> Tensor:
        """Return the matrix of a relation, [out, into]."""
        if self.coefficients is not None:
            return torch.einsum("b,boi->oi", self.coefficients[relation], self.weight)
        if self.weight.ndim == 4:
            blocks, out, into = self.weight.shape[1:]
            diagonal = torch.eye(blocks, dtype=self.weight.dtype, device=self.weight.device)
            dense = torch.einsum("boi,bc->boci", self.weight[relation], diagonal)
            return dense.reshape(blocks * out, blocks * into)
        return self.weight[relation]

    def forward(self, x: Tensor, edges: Edges, sizes: Sequence[int]) -> Tensor:
        total = transform_by_type(x, sizes, self.own) if self.own.ndim == 3 else x @ self.own.T
        for relation, (sources, ends, weights, _) in enumerate(edges):
            edge_weights = x.new_ones(len(ends)) if weights is None else weights.to(x.dtype)
            sums = sum_at(edge_weights, ends, x.shape[0])[:, None]
            mean = sum_at(edge_weights[:, None] * x[sources], ends, x.shape[0]) / torch.where(
                sums > 0, sums, 1
            )
            total = total + mean @ self.matrix(relation).T
        return total + self.bias


class RelationAttention(nn.Module):
    """R-GAT layer: attention within each relation, with heads that are concatenated or averaged.

    `edge_features` is the number of edge feature columns in the attention; 0 for none.
    """

    def __init__(
        self,
        into: int,
        head_features: int,
        heads: int,
        relations: int,
        *,
        average: bool,
        edge_features: int = 0,
    ) -> None:
        super().__init__()
        self.average = average
        out = head_features if average else heads * head_features
        self.weight = nn.Parameter(torch.zeros(relations, heads, head_features, into))
        self.source = nn.Parameter(torch.zeros(relations, heads, head_features))
        self.destination = nn.Parameter(torch.zeros(relations, heads, head_features))
        self.edge = nn.Parameter(torch.zeros(relations, heads, edge_features)) if edge_features else None
        self.own = nn.Parameter(torch.zeros(out, into))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor, edges: Edges, sizes: Sequence[int]) -> Tensor:
        total = x @ self.own.T + self.bias
        for relation, (sources, ends, _, features) in enumerate(edges):
            rows = torch.einsum("vf,hdf->vhd", x, self.weight[relation])
            source_scores, destination_scores = (
                (rows * self.source[relation]).sum(2),
                (rows * self.destination[relation]).sum(2),
            )
            sums = source_scores[sources] + destination_scores[ends]
            if self.edge is not None and features is not None:
                sums = sums + features.to(x.dtype) @ self.edge[relation].T
            scores = torch.nn.functional.leaky_relu(sums, 0.2)
            shares = edge_softmax(scores, ends, x.shape[0])
            result = sum_at(shares[:, :, None] * rows[sources], ends, x.shape[0])
            total = total + (result.mean(1) if self.average else result.flatten(1))
        return total


class HeteroTransformer(nn.Module):
    """HGT layer: projections per type, matrices per relation and head, and one softmax per vertex.

    `hidden` is the width of keys, queries and values.
    """

    def __init__(self, into: int, hidden: int, out: int, heads: int, types: int, relations: int) -> None:
        super().__init__()
        self.heads = heads
        width = hidden // heads
        for name in ("key", "query", "value"):
            self.register_parameter(name, nn.Parameter(torch.zeros(types, hidden, into)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(types, hidden)))
        self.result = nn.Parameter(torch.zeros(types, out, hidden))
        self.result_bias = nn.Parameter(torch.zeros(types, out))
        self.attention = nn.Parameter(torch.zeros(relations, heads, width, width))
        self.message = nn.Parameter(torch.zeros(relations, heads, width, width))
        self.prior = nn.Parameter(torch.zeros(relations, heads))
        self.gate = nn.Parameter(torch.zeros(types)) if into == out else None

    def forward(self, x: Tensor, edges: Edges, sizes: Sequence[int]) -> Tensor:
        keys, queries, values = (
            transform_by_type(x, sizes, getattr(self, name), getattr(self, f"{name}_bias")).view(
                x.shape[0], self.heads, -1
            )
            for name in ("key", "query", "value")
        )
        scores, messages = [], []
        for relation, (sources, ends, _, _) in enumerate(edges):
            transformed = torch.einsum("ehi,hoi->eho", queries[ends], self.attention[relation])
            scale = self.prior[relation] / keys.shape[2] ** 0.5
            scores.append((transformed * keys[sources]).sum(2) * scale)
            messages.append(torch.einsum("ehi,hio->eho", values[sources], self.message[relation]))
        ends = torch.cat([ends for _, ends, _, _ in edges])
        shares = edge_softmax(torch.cat(scores), ends, x.shape[0])
        gathered = sum_at(shares[:, :, None] * torch.cat(messages), ends, x.shape[0]).flatten(1)
        out = transform_by_type(torch.nn.functional.gelu(gathered), sizes, self.result, self.result_bias)
        if self.gate is None:
            return out
        gate = self.gate.sigmoid().repeat_interleave(torch.tensor(sizes, device=x.device))[:, None]
        return gate * out + (1 - gate) * x


class PlainEmbedding(nn.Module):
    """Embedding table of a vertex type without features."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(count, width))


class PlainInputProjections(nn.Module):
    """Input projections of all vertex types to one width.

    `types` has the name of each type, its number of vertices in training, and its number of feature columns
    (None without features).
    """

    def __init__(self, types: Sequence[tuple[str, int, int | None]], width: int) -> None:
        super().__init__()
        self.names = [name for name, _, _ in types]
        self.maps = nn.ModuleDict(
            {
                str(t): nn.Linear(columns, width)
                for t, (_, _, columns) in enumerate(types)
                if columns is not None
            }
        )
        self.learned = nn.ModuleDict(
            {
                str(t): PlainEmbedding(count, width)
                for t, (_, count, columns) in enumerate(types)
                if columns is None
            }
        )

    def forward(self, x: Mapping[str, Tensor]) -> list[Tensor]:
        """Project the rows of each type, [n, width]."""
        return [
            self.maps[str(t)](x[name]) if str(t) in self.maps else self.learned[str(t)].values  # type: ignore[misc]
            for t, name in enumerate(self.names)
        ]


class PlainHeteroGNN(nn.Module):
    """GNN whose hidden layers are followed by residual, LayerNorm and ReLU, as the arguments specify.

    Parameters
    ----------
    kind
        `rgcn`, `rsage`, `rgat` or `hgt`.
    types
        Vertex types, as for `PlainInputProjections`.
    relations
        Source type, name and destination type of each relation.
    heads
        Number of attention heads of R-GAT and HGT.
    norm
        `layer` or `none`.
    residual
        Whether a hidden layer's input is added to its output.
    bases, blocks
        Number of basis matrices, or of diagonal blocks, of R-GCN.
    edge_features
        Number of edge feature columns of R-GAT.
    """

    def __init__(
        self,
        *,
        kind: str,
        types: Sequence[tuple[str, int, int | None]],
        relations: Sequence[tuple[str, str, str]],
        hidden: int,
        num_classes: int,
        layers: int,
        heads: int = 4,
        norm: str = "none",
        residual: bool = False,
        bases: int = 0,
        blocks: int = 0,
        edge_features: int = 0,
    ) -> None:
        super().__init__()
        self.edge_features = edge_features
        self.relations = [(source, name, end) for source, name, end in relations]
        self.features = nn.ModuleDict()
        self.classes: list[str] | None = None
        self.input = PlainInputProjections(types, hidden)
        self.layers = nn.ModuleList()
        counts = (len(types), len(self.relations))
        for i in range(layers):
            last = i == layers - 1
            out = num_classes if last else hidden
            if kind == "rgat":
                width = out if last else out // heads
                self.layers.append(
                    RelationAttention(
                        *(hidden, width, heads, counts[1]), average=last, edge_features=edge_features
                    )
                )
            elif kind == "hgt":
                self.layers.append(HeteroTransformer(hidden, hidden, out, heads, *counts))
            else:
                fits = bool(blocks) and not (hidden % blocks or out % blocks)
                self.layers.append(
                    RelationMeans(
                        *(hidden, out, *counts),
                        self_by_type=kind == "rsage",
                        bases=bases,
                        blocks=blocks if fits else 0,
                    )
                )
        self.residual = residual
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers - 1 if norm == "layer" else 0))

    def features_of(self, name: str) -> nn.Module:
        """Return the module that scales the rows of a type, or the identity."""
        number = str(self.input.names.index(name)) if name in self.input.names else ""
        return self.features[number] if number in self.features else nn.Identity()

    def forward(
        self,
        x: Mapping[str, Tensor],
        edge_index: Mapping[tuple[str, str, str], Tensor],
        edge_weight: Mapping[tuple[str, str, str], Tensor] | None = None,
        edge_attr: Mapping[tuple[str, str, str], Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Compute the scores of all vertices, [n, num_classes] per type.

        Only types that had labels have meaningful scores.

        Parameters
        ----------
        x
            [n, F] unscaled feature rows of each type with features in training, which the model scales. Other
            types have the vertices and embeddings of training. If the columns have a different order, pass
            `model.features_of(name).ordered(x, names)`.
        edge_index
            [2, E] int64, source and destination of each edge, numbered within their types, by (source type,
            name, destination type). A missing relation has no edges.
        edge_weight
            [E] edge weights of some relations, if the model was trained with weights; attention ignores them.
        edge_attr
            [E, d] edge features of each relation, if the model has `edge_features`. After training on weights
            only, pass the weights as one column.
        """
        x = {name: self.features_of(name)(rows) for name, rows in x.items()}
        parts = self.input(x)
        sizes = [len(part) for part in parts]
        starts = dict(zip(self.input.names, torch.tensor([0, *sizes]).cumsum(0).tolist(), strict=False))
        rows = torch.cat(parts)
        no_edges = torch.empty((2, 0), dtype=torch.int64, device=rows.device)
        edges = []
        for relation in self.relations:
            ends = edge_index.get(relation, no_edges)
            weights, features = (
                None if by_relation is None else by_relation.get(relation)
                for by_relation in (edge_weight, edge_attr)
            )
            if self.edge_features and features is None:
                if ends.shape[1]:
                    raise ValueError(
                        f"edge_attr of {relation} is missing: pass [E, {self.edge_features}] rows"
                    )
                features = rows.new_empty((0, self.edge_features))
            edges.append((ends[0] + starts[relation[0]], ends[1] + starts[relation[2]], weights, features))
        for i, layer in enumerate(self.layers):
            layer_input, rows = rows, layer(rows, edges, sizes)
            if i == len(self.layers) - 1:
                break
            if self.residual:
                rows = rows + layer_input
            if len(self.norms):
                rows = self.norms[i](rows)
            rows = rows.relu()
        return dict(zip(self.input.names, torch.split(rows, sizes), strict=True))


def load(folder: str | Path) -> PlainHeteroGNN:
    """Load the model from a folder written by `hyrt export`, in evaluation mode."""
    from safetensors.torch import load_file

    arguments: dict[str, Any] = json.loads((Path(folder) / "arguments.json").read_text(encoding="utf-8"))
    model = PlainHeteroGNN(**arguments["model"])
    for name, feature_arguments in arguments["features"].items():
        # Unlike type names, module names cannot contain arbitrary characters, so use the index of the type.
        model.features[str(model.input.names.index(name))] = PlainFeatures(**feature_arguments)
    model.classes = arguments["classes"]
    model.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
    return model.eval()
