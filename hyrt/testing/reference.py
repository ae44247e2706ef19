"""Float64 reference step with dense matrices and the formulas of the papers; independent of `hyrt.nn`.

Papers: GraphSAGE (Hamilton et al., 2017), GCN (Kipf and Welling, 2017), GIN (Xu et al., 2019) and GAT
(Velickovic et al., 2018). If k of d in-neighbours were sampled, d / k (or a block's edge factor) multiplies
the sums of GCN and GIN. Edge weights are a further factor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.nn.model import GNN
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_DROPOUT_PURPOSE, _ATTENTION_PURPOSE = 2, 6


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """Expected float64 result of a mini-batch."""

    loss_sum: float
    loss_magnitude: float
    """Sum of absolute losses plus the largest absolute score; the scale of rounding errors."""
    correct: tuple[int, int]
    """Minimum and maximum number of correct targets; they differ if scores are equal up to rounding."""
    gradients: list[Tensor]
    """One per parameter."""
    names: list[str]


def reference_step(
    model: torch.nn.Module, parameters: Sequence[Tensor], batch: MiniBatch, rows: NDArray[np.float64]
) -> ReferenceResult:
    """Compute one step of a `GNN`, or of any other module in float64.

    `parameters` are the trainable ones, in order. `rows` [num_src, f] float64 are the source rows of the
    first block and replace the inputs of `batch`, whose blocks must be relabelled.
    """
    twin = copy.deepcopy(model).double().train()
    named = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    trainable = list(named.values())
    with torch.no_grad():
        for parameter, value in zip(trainable, parameters, strict=True):
            parameter.copy_(value)
    x = torch.from_numpy(rows)
    scores = _gnn(twin, batch.blocks, x) if isinstance(twin, GNN) else twin(batch.blocks, x)
    if batch.target_rows is not None:
        scores = scores[torch.from_numpy(batch.target_rows.astype(np.int64))]
    labels = torch.from_numpy(batch.labels.copy())
    target_scores = scores[torch.arange(len(labels)), labels]
    losses = scores.logsumexp(1) - target_scores
    if batch.target_weights is not None:
        losses = losses * torch.from_numpy(batch.target_weights.astype(np.float64))
    loss = losses.sum()
    loss.backward()
    other_scores = scores.detach().clone()
    other_scores[torch.arange(len(labels)), labels] = -torch.inf
    lead = target_scores.detach() - other_scores.amax(1)
    slack = 1e-5 * (1 + scores.detach().abs().amax(1))
    return ReferenceResult(
        loss_sum=loss.item(),
        loss_magnitude=float(losses.detach().abs().sum() + scores.detach().abs().max()),
        correct=(int((lead > slack).sum()), int((lead > -slack).sum())),
        gradients=[torch.zeros_like(p) if p.grad is None else p.grad for p in trainable],
        names=list(named),
    )


def _gnn(model: GNN, blocks: Sequence[Block], x: Tensor) -> Tensor:
    a = model.architecture
    named = dict(model.named_parameters())
    first = blocks[0]
    if a.input_dropout:
        assert first.sources is not None
        x = x * dropout_mask(first.sources, x.shape[1], a.input_dropout, first.seed, first.step, 0)
    for i, block in enumerate(blocks):
        is_last = i == len(blocks) - 1
        prefix = f"layers.{i}."
        layer_parameters = {
            name.removeprefix(prefix): p for name, p in named.items() if name.startswith(prefix)
        }
        out = _layer(a.kind, a.aggregate, block, x, layer_parameters, is_last, a.attention_dropout)
        if is_last:
            return out
        adds_last = a.kind == "deepgcn"
        shortcut_rows = torch.zeros_like(out)
        if a.residual and not (adds_last and i == 0):
            shortcut = named.get(f"shortcuts.{i}.weight")
            dst_rows = x[: block.num_dst]
            shortcut_rows = dst_rows if shortcut is None else dst_rows @ shortcut.T
        out = out if adds_last else out + shortcut_rows
        if a.norm == "layer":
            out = _layer_norm(out, named[f"norms.{i}.weight"], named[f"norms.{i}.bias"])
        x = out.relu() + shortcut_rows if adds_last else out.relu()
        if a.dropout:
            x = x * dropout_mask(block.destinations, x.shape[1], a.dropout, block.seed, block.step, i + 1)
    raise AssertionError("a model has layers")


def _layer(
    kind: str, reduce: str, block: Block, x: Tensor, p: Mapping[str, Tensor], is_last: bool, dropout: float
) -> Tensor:
    dst_rows = x[: block.num_dst]
    if kind == "graphsage":
        mixed = _maxima(block, x) if reduce == "max" else _matrix(block, reduce) @ x
        return torch.cat([dst_rows, mixed], 1) @ p["weight"].T + p["bias"]
    if kind in ("gcn", "deepgcn"):
        loops = dst_rows / (_column(_sums(block)) + 1)
        return (_matrix(block, "gcn") @ x + loops) @ p["weight"].T + p["bias"]
    if kind == "gin":
        hidden = (dst_rows + _matrix(block, "sum") @ x) @ p["inner.weight"].T + p["inner.bias"]
        if "norm.weight" in p:
            hidden = _layer_norm(hidden, p["norm.weight"], p["norm.bias"])
        return hidden.relu() @ p["weight"].T + p["bias"]
    masks = attention_masks(block, len(p["weight"]), dropout)
    heads = [
        _attention(block, x @ w.T, to_source, to_destination, mask)
        for w, to_source, to_destination, mask in zip(
            p["weight"], p["source"], p["destination"], masks, strict=True
        )
    ]
    return (torch.stack(heads).mean(0) if is_last else torch.cat(heads, 1)) + p["bias"]


def _layer_norm(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight + bias


def _column(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))[:, None]


def _rows_of_edges(block: Block) -> NDArray[np.int64]:
    return np.repeat(np.arange(block.num_dst), np.diff(block.indptr))


def _edges(block: Block, *, weighted: bool) -> Tensor:
    """Return the number or total weight of edges between each pair of vertices, [num_dst, num_src]."""
    out = np.zeros((block.num_dst, block.num_src))
    amounts = np.ones(block.num_edges)
    for factors in (block.weights, block.edge_weights) if weighted else ():
        if factors is not None:
            amounts *= factors
    np.add.at(out, (_rows_of_edges(block), block.columns), amounts)
    return torch.from_numpy(out)


def _sums(block: Block) -> NDArray[Any]:
    """Return in-degrees [num_dst], weighted if the edges have weights."""
    return block.degrees if block.weighted_degrees is None else block.weighted_degrees


def _matrix(block: Block, reduce: str) -> Tensor:
    edges, d = _edges(block, weighted=True), _column(_sums(block))
    sampled = _column(np.diff(block.indptr))
    if block.weights is None:
        edges = edges * _column(block.degrees) / sampled.clamp(min=1)
    if reduce == "mean":
        return edges / torch.where(d > 0, d, 1)
    if reduce == "sum":
        return edges
    weighted_source_degrees = block.source_weighted_degrees
    sources = _column(block.source_degrees if weighted_source_degrees is None else weighted_source_degrees)
    return edges / ((d + 1) * (sources.T + 1)).sqrt()


def _maxima(block: Block, x: Tensor) -> Tensor:
    rows = []
    for i in range(block.num_dst):
        sources = torch.from_numpy(block.columns[block.indptr[i] : block.indptr[i + 1]].astype(np.int64))
        rows.append(x[sources].max(0).values if len(sources) else x.new_zeros(x.shape[1]))
    return torch.stack(rows)


def _attention(block: Block, z: Tensor, to_source: Tensor, to_destination: Tensor, mask: Tensor) -> Tensor:
    times = _edges(block, weighted=False) + torch.eye(block.num_dst, block.num_src, dtype=torch.float64)
    score = (z @ to_source)[None, :] + (z[: block.num_dst] @ to_destination)[:, None]
    score = torch.where(score > 0, score, 0.2 * score)
    # The logarithm of the edge count weights repeated edges in the softmax, and excludes absent edges.
    return ((score + times.log()).softmax(1) * mask) @ z


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def dropout_mask(vertices: NDArray[Any], width: int, rate: float, seed: int, step: int, layer: int) -> Tensor:
    """Return the dropout factors of `vertices`, [n, width] float64, as `operators.dropout` computes them.

    Each column uses 16 bits of a random word, keyed by seed, step, layer (0: input) and vertex; `rate` is
    rounded to 1/65536.
    """
    columns = np.arange(width, dtype=np.uint64)
    streams = _streams(_DROPOUT_PURPOSE, seed, step, layer, vertices)[:, None]
    return _factors(streams, columns // np.uint64(4), columns % np.uint64(4), rate)


def attention_masks(block: Block, heads: int, rate: float) -> Tensor:
    """Return dropout factors of attention weights, [heads, num_dst, num_src] float64.

    Each head uses 16 bits of a random word, keyed by both ends of the edge; `rate` is rounded to 1/65536.
    """
    sources = np.arange(block.num_src) if block.sources is None else block.sources
    streams = _streams(_ATTENTION_PURPOSE, block.seed, block.step, block.layer, block.destinations)
    head = np.arange(heads, dtype=np.uint64)[:, None, None]
    words = sources.astype(np.uint64) * np.uint64(-(-heads // 4)) + head // np.uint64(4)
    return _factors(streams[:, None], words, head % np.uint64(4), rate)


def _streams(purpose: int, seed: int, step: int, layer: int, vertices: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the random stream of each vertex, [n]."""
    with np.errstate(over="ignore"):
        golden = np.uint64(_GOLDEN)
        key = _mix(np.array([(seed + _GOLDEN) & _WORD], np.uint64))
        for part in (purpose, step, layer):
            key = _mix(key + np.uint64(part + 1) * golden)
        return _mix(key + (vertices.astype(np.uint64) + np.uint64(1)) * golden)


def _factors(
    streams: NDArray[np.uint64], words: NDArray[np.uint64], lanes: NDArray[np.uint64], rate: float
) -> Tensor:
    """Return 0 for dropped elements (their 16 bits are below the threshold), and the scale for others."""
    with np.errstate(over="ignore"):
        random_words = _mix(streams + (words + np.uint64(1)) * np.uint64(_GOLDEN))
    bits = (random_words >> (np.uint64(16) * lanes)) & np.uint64(0xFFFF)
    threshold = min(round(rate * 65536), 65535)
    return torch.from_numpy((bits >= np.uint64(threshold)) * (65536 / (65536 - threshold)))
