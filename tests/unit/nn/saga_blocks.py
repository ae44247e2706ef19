"""Blocks for layers of a user's own, and what the layers compute on them for all pairs in float64."""

from __future__ import annotations

import numpy as np
import torch
from saga_layers import dense_result
from unit.nn.block_cases import awkward_graph, sampled, values

from hyrt.nn import SagaLayer
from hyrt.sampling.block import Block

GRAPH = awkward_graph()
IN, OUT = GRAPH.num_features, 6


def block_of(*, weighted: bool = False, fanout: int = 4) -> Block:
    block = sampled(GRAPH, range(40), [fanout]).blocks[0]
    if weighted:
        rng = np.random.default_rng(1)
        block.weights = rng.uniform(0.5, 2, block.num_edges).astype(np.float32)
    return block


def rows_of(block: Block) -> torch.Tensor:
    return torch.from_numpy(values(GRAPH)[block.sources])


def by_pairs(name: str, layer: SagaLayer, block: Block, x: torch.Tensor) -> tuple[torch.Tensor, list]:
    """The result in float64, and the gradients of x and all parameters for a fixed gradient."""
    parameters = {n: p.detach().double().requires_grad_() for n, p in layer.named_parameters()}
    rows = x.detach().double().requires_grad_()
    counts, weights = (np.zeros((block.num_dst, block.num_src)) for _ in range(2))
    for i in range(block.num_dst):
        for e in range(block.indptr[i], block.indptr[i + 1]):
            counts[i, block.columns[e]] += 1
            weights[i, block.columns[e]] += 1 if block.weights is None else block.weights[e]
    degrees = (torch.from_numpy(d.astype(np.float64)) for d in (block.degrees, block.source_degrees))
    result = dense_result(
        name, parameters, rows, torch.from_numpy(counts), torch.from_numpy(weights), *degrees
    )
    return result, gradients(result, [rows, *parameters.values()])


def gradients(result: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    along = torch.sin(torch.arange(result.numel(), dtype=torch.float64)).view(result.shape).to(result.dtype)
    return list(torch.autograd.grad(result, inputs, along))


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, bound: float) -> None:
    assert ours.shape == theirs.shape
    ours, theirs = ours.detach().double(), theirs.detach()
    difference = (ours - theirs).abs().max()
    assert difference <= bound * max(1e-3, float(theirs.abs().max())), difference
