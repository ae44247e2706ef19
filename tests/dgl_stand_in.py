"""What hyrt asks of dgl, and convolutions that ask of a block what DGL's do, for machines without dgl."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn


class StandInBlock:
    """The part of a `DGLBlock` that the convolutions here look at."""

    is_block = True

    def __init__(self, indptr: Tensor, indices: Tensor, num_src: int, num_dst: int) -> None:
        assert len(indptr) == num_dst + 1
        assert int(indptr[-1]) == len(indices)
        assert len(indices) == 0 or int(indices.max()) < num_src
        self._sources = indices
        self._destinations = torch.repeat_interleave(torch.arange(num_dst), indptr.diff())
        self._num_src, self._num_dst = num_src, num_dst
        self.edata: dict[str, Tensor] = {}

    def edges(self) -> tuple[Tensor, Tensor]:
        return self._sources, self._destinations

    def num_src_nodes(self) -> int:
        return self._num_src

    def num_dst_nodes(self) -> int:
        return self._num_dst

    def in_degrees(self) -> Tensor:
        return torch.bincount(self._destinations, minlength=self._num_dst)

    def out_degrees(self) -> Tensor:
        return torch.bincount(self._sources, minlength=self._num_src)


def create_block(edges: Any, num_src_nodes: int, num_dst_nodes: int, device: Any) -> StandInBlock:
    kind, (indptr, indices, numbers) = edges
    assert kind == "csc"
    assert numbers.tolist() == list(range(len(indices)))
    assert indptr.dtype == indices.dtype == torch.int64
    return StandInBlock(indptr, indices, num_src_nodes, num_dst_nodes)


def stand_in() -> types.ModuleType:
    """A module to put in the place of dgl."""
    module = types.ModuleType("dgl")
    module.create_block = create_block  # type: ignore[attr-defined]
    return module


def summed(block: StandInBlock, rows: Tensor) -> Tensor:
    """[num_dst, ...] sums of [E, ...] rows over the edges into each destination."""
    return rows.new_zeros(block.num_dst_nodes(), *rows.shape[1:]).index_add(0, block.edges()[1], rows)


class Mean(nn.Module):
    """As SAGEConv with the aggregator `mean` is."""

    __module__ = "dgl.nn.pytorch.conv.sageconv"

    def __init__(self, into: int, out: int, feat_drop: float = 0.0, activation: Any = None) -> None:
        super().__init__()
        self._in_src_feats = into
        self.fc_neigh, self.fc_self = nn.Linear(into, out, bias=False), nn.Linear(into, out)
        self.feat_drop, self.activation = nn.Dropout(feat_drop), activation

    def forward(self, graph: StandInBlock, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        rows, own = feat, feat[: graph.num_dst_nodes()]
        sent = rows[graph.edges()[0]]
        if edge_weight is not None:
            sent = sent * edge_weight[:, None]
        mean = summed(graph, sent) / graph.in_degrees().clamp(min=1)[:, None]
        made: Tensor = self.fc_self(own) + self.fc_neigh(mean)
        return made if self.activation is None else self.activation(made)


class Heads(nn.Module):
    """As GATConv is: [num_dst, heads, out], and no vertex without edges unless that is allowed."""

    __module__ = "dgl.nn.pytorch.conv.gatconv"

    def __init__(self, into: int, out: int, heads: int, allow_zero_in_degree: bool = False) -> None:
        super().__init__()
        self._in_src_feats, self._allow_zero_in_degree = into, allow_zero_in_degree
        self.fc = nn.Linear(into, out * heads, bias=False)
        self.attention = nn.Parameter(torch.randn(heads, out))

    def forward(self, graph: StandInBlock, feat: Tensor, get_attention: bool = False) -> Tensor:
        if not self._allow_zero_in_degree and bool((graph.in_degrees() == 0).any()):
            raise ValueError("There are 0-in-degree nodes in the graph")
        heads, out = self.attention.shape
        rows = self.fc(feat).view(-1, heads, out)
        scores = torch.exp((rows * self.attention).sum(-1))[graph.edges()[0]]
        return summed(graph, rows[graph.edges()[0]] * scores[..., None]) / summed(graph, scores)[..., None]


class OfEdges(nn.Module):
    """As EdgeGATConv takes the features of edges, with a plain sum."""

    __module__ = "dgl.nn.pytorch.conv.edgegatconv"

    def __init__(self, into: int, out: int, edge_feats: int) -> None:
        super().__init__()
        self._in_src_feats, self._edge_feats = into, edge_feats
        self.fc, self.fc_edge = nn.Linear(into, out), nn.Linear(edge_feats, out)

    def forward(self, graph: StandInBlock, feat: Tensor, edge_feat: Tensor) -> Tensor:
        return summed(graph, self.fc(feat)[graph.edges()[0]] * self.fc_edge(edge_feat))


class Degrees(nn.Module):
    """Divides by the edges that leave a source in the block, as GraphConv does with `norm="left"`."""

    def __init__(self, into: int, out: int, norm: str | None = None) -> None:
        super().__init__()
        self.fc, self._norm = nn.Linear(into, out), norm

    def forward(self, graph: StandInBlock, feat: Tensor) -> Tensor:
        rows = self.fc(feat) / graph.out_degrees().clamp(min=1)[:, None]
        return summed(graph, rows[graph.edges()[0]])
