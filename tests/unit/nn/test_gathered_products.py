"""Layers whose messages are rows of an edge's ends or products of them, beside torch edge by edge."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from saga_blocks import IN, OUT, assert_close, block_of, rows_of
from saga_layers import Gated

from hyrt.nn import SagaLayer
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Block


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


class GatedOwn(Gated):
    """The vertex's own row is read, and added to what it gathered."""

    def apply_vertex(self, vertex, gathered):
        return self.update(gathered + vertex)


class OpenedBySources(Gated):
    """Destinations send their rows as they are, sources only products."""

    def apply_edge(self, edge):
        return edge.dst * torch.sigmoid(self.gate_src(edge.src)) + self.gate_dst(edge.src)


class OfDestinations(Gated):
    """Nothing of sources is read."""

    def apply_edge(self, edge):
        return torch.tanh(edge.dst) * self.gate_dst(edge.dst)


class Deaf(Gated):
    """What was gathered is not read."""

    def apply_vertex(self, vertex, gathered):
        return self.update(vertex)


def edge_by_edge(layer: SagaLayer, block: Block, x: torch.Tensor) -> torch.Tensor:
    rows = torch.from_numpy(np.repeat(np.arange(block.num_dst), np.diff(block.indptr)))
    messages = layer.apply_edge(SimpleNamespace(src=x[torch.from_numpy(block.columns)], dst=x[rows]))
    scale = torch.from_numpy(block.degrees / np.maximum(np.diff(block.indptr), 1))
    sums = torch.zeros(block.num_dst, messages.shape[1], dtype=x.dtype)
    sums = sums.index_add(0, rows, messages * scale[rows, None])
    return layer.apply_vertex(x[: block.num_dst], sums)


def gradients(result: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    along = torch.sin(torch.arange(result.numel(), dtype=torch.float64)).view(result.shape).to(result.dtype)
    found = torch.autograd.grad(result, inputs, along, allow_unused=True)
    return [torch.zeros_like(each) if g is None else g for each, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("kind", [Gated, GatedOwn, OpenedBySources, OfDestinations, Deaf])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_layer_is_itself_edge_by_edge(kind: type[Gated], threads: int) -> None:
    torch.manual_seed(0)
    layer, block = kind(IN, OUT), block_of()
    wide = copy.deepcopy(layer).double()
    x = rows_of(block).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    expected = edge_by_edge(wide, block, x64)
    exact = gradients(expected, [x64, *wide.parameters()])
    with Workers(threads, "team") as team, use_workers(team):
        result = layer(block, x)
        found = gradients(result, [x, *layer.parameters()])
        # As a first layer is trained, with a part of it that is not.
        layer.gate_src.weight.requires_grad_(False)
        names = [name for name, each in layer.named_parameters() if each.requires_grad]
        trained = [each for each in layer.parameters() if each.requires_grad]
        of_first = gradients(layer(block, x.detach()), trained)
    assert_close(result, expected, 1e-4)
    for ours, theirs in zip(found, exact, strict=True):
        assert_close(ours, theirs, 1e-4)
    by_name = dict(zip(dict(wide.named_parameters()), exact[1:], strict=True))
    for ours, name in zip(of_first, names, strict=True):
        assert_close(ours, by_name[name], 1e-4)


class Sent(Gated):
    """The only products are those of edges."""

    def apply_vertex(self, vertex, gathered):
        return gathered


def test_products_of_low_precision_are_about_those_of_float32() -> None:
    torch.manual_seed(0)
    layer, block = Sent(IN, IN), block_of()
    x = rows_of(block).requires_grad_()
    inputs = [x, layer.gate_dst.weight, layer.gate_dst.bias, layer.gate_src.weight]
    exact = layer(block, x)
    expected = gradients(exact, inputs)
    layer.low_precision = True
    result = layer(block, x)
    # Products are rounded to 2^-9 of them, and go through a logistic function.
    assert 0 < (result - exact).abs().max() <= 2.0**-7 * exact.abs().max()
    for ours, theirs in zip(gradients(result, inputs), expected, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < (ours - theirs).norm() <= 2.0**-6 * theirs.norm()
