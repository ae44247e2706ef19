"""The layers as their papers write them: dense float64 matrices, PyTorch autograd, no code of hyrt.nn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hyrt.sampling.block import Block

Parameters = Mapping[str, Tensor]


def parameters_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Float64 copies of a model's parameters that take gradients of their own."""
    return {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}


def edge_matrix(block: Block) -> Tensor:
    """[num_dst, num_src]: how often (or with what total weight) a source is a neighbour of a destination."""
    out = np.zeros((block.num_dst, block.num_src))
    for i in range(block.num_dst):
        for e in range(block.indptr[i], block.indptr[i + 1]):
            out[i, block.columns[e]] += 1.0 if block.weights is None else float(block.weights[e])
    return torch.from_numpy(out)


def own_matrix(block: Block) -> Tensor:
    """[num_dst, num_src]: destinations are the first sources."""
    return torch.eye(block.num_dst, block.num_src, dtype=torch.float64)


def mixing_matrix(block: Block, reduce: str) -> Tensor:
    """The matrix of a linear reduction, with k sampled out of d neighbours scaled by d / k."""
    edges = edge_matrix(block)
    d = torch.from_numpy(block.degrees.astype(np.float64))[:, None]
    d_source = torch.from_numpy(block.source_degrees.astype(np.float64))[None, :]
    if block.weights is None:
        k = edges.sum(1, keepdim=True).clamp(min=1)
        average, total = edges / k, edges * d / k
    else:
        average, total = edges / d.clamp(min=1), edges
    if reduce == "mean":
        return average
    return total if reduce == "sum" else total / ((d + 1) * (d_source + 1)).sqrt()


def first_maximum(block: Block, x: Tensor) -> Tensor:
    """Elementwise maximum over a destination's edges, zero without any; of equal ones, the first edge's."""
    rows = []
    for i in range(block.num_dst):
        sources = block.columns[block.indptr[i] : block.indptr[i + 1]].astype(np.int64)
        if len(sources):
            winners = np.argmax(x.detach().numpy()[sources], axis=0)
            rows.append(x[sources[winners], np.arange(x.shape[1])])
        else:
            # Zero, but of x: its gradient is asked for where no destination has an edge, too.
            rows.append(x.sum(0) * 0)
    return torch.stack(rows) if rows else x[:0]


def combine(block: Block, x: Tensor, reduce: str, self_path: str, epsilon: float = 0.0) -> Tensor:
    """What `aggregate` promises, densely."""
    if reduce == "max":
        mixed = first_maximum(block, x)
    else:
        mixed = mixing_matrix(block, reduce) @ x
    own = own_matrix(block) @ x
    if self_path == "concat":
        return torch.cat([own, mixed], 1)
    if self_path == "add":
        if reduce == "gcn":
            return mixed + own / (torch.from_numpy(block.degrees.astype(np.float64))[:, None] + 1)
        return mixed + (1 + epsilon) * own
    return mixed


def attention(
    block: Block,
    z: Tensor,
    to_source: Tensor,
    to_own: Tensor,
    slope: float = 0.2,
    factors: Tensor | float = 1.0,
) -> Tensor:
    """One head: softmax over a destination's edges and its self loop, of LeakyReLU(z_j . a + z_i . b).

    `factors` [num_dst, num_src] are those of a dropout of its weights.
    """
    if not block.num_dst:
        return z[:0]
    times = edge_matrix(block) + own_matrix(block)
    score = (z @ to_source)[None, :] + (z[: block.num_dst] @ to_own)[:, None]
    score = torch.nn.functional.leaky_relu(score, slope)
    top = torch.where(times > 0, score, -torch.inf).amax(1, keepdim=True).detach()
    weight = times * torch.exp(torch.where(times > 0, score - top, 0.0))
    return (factors * weight / weight.sum(1, keepdim=True)) @ z


def sage(block: Block, x: Tensor, p: Parameters, reduce: str = "mean") -> Tensor:
    return combine(block, x, reduce, "concat") @ p["weight"].T + p["bias"]


def gcn(block: Block, x: Tensor, p: Parameters) -> Tensor:
    return combine(block, x, "gcn", "add") @ p["weight"].T + p["bias"]


def gin(block: Block, x: Tensor, p: Parameters, epsilon: float = 0.0) -> Tensor:
    hidden = combine(block, x, "sum", "add", epsilon) @ p["inner.weight"].T + p["inner.bias"]
    if "norm.weight" in p:
        hidden = layer_norm(hidden, p["norm.weight"], p["norm.bias"])
    return hidden.relu() @ p["weight"].T + p["bias"]


def gat(block: Block, x: Tensor, p: Parameters, average: bool = False) -> Tensor:
    heads = [
        attention(block, x @ p["weight"][h].T, p["source"][h], p["destination"][h])
        for h in range(len(p["weight"]))
    ]
    return (torch.stack(heads).mean(0) if average else torch.cat(heads, 1)) + p["bias"]


def layer_norm(x: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * gain + offset


def scores(
    kind: str,
    blocks: Sequence[Block],
    x: Tensor,
    p: Parameters,
    *,
    residual: bool = False,
    norm: bool = False,
    input_mask: Tensor | None = None,
    masks: Sequence[Tensor] = (),
) -> Tensor:
    """A whole model: layer, + residual, LayerNorm, ReLU, then a mask of dropout; the last layer bare.

    `kind` is `gcn`, `deepgcn`, `graphsage-mean`, `graphsage-max`, `gin` or `gat`; `p` has the names of
    `GNN`'s parameters. `deepgcn` adds rows after the ReLU, from its second layer on.
    """
    layers: dict[str, Callable[[Block, Tensor, Parameters, bool], Tensor]] = {
        "gcn": lambda b, h, q, last: gcn(b, h, q),
        "deepgcn": lambda b, h, q, last: gcn(b, h, q),
        "graphsage-mean": lambda b, h, q, last: sage(b, h, q, "mean"),
        "graphsage-max": lambda b, h, q, last: sage(b, h, q, "max"),
        "gin": lambda b, h, q, last: gin(b, h, q),
        "gat": lambda b, h, q, last: gat(b, h, q, average=last),
    }
    if input_mask is not None:
        x = x * input_mask
    for i, block in enumerate(blocks):
        last = i == len(blocks) - 1
        prefix = f"layers.{i}."
        own = {name.removeprefix(prefix): q for name, q in p.items() if name.startswith(prefix)}
        out = layers[kind](block, x, own, last)
        if last:
            return out
        if residual and kind != "deepgcn":
            shortcut = x[: block.num_dst]
            if f"shortcuts.{i}.weight" in p:
                shortcut = shortcut @ p[f"shortcuts.{i}.weight"].T
            out = out + shortcut
        if norm:
            out = layer_norm(out, p[f"norms.{i}.weight"], p[f"norms.{i}.bias"])
        shortcut = x[: block.num_dst] if residual and kind == "deepgcn" and i else 0
        x = out.relu() + shortcut
        if masks:
            x = x * masks[i]
    raise AssertionError("a model has layers")
