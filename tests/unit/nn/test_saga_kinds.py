"""The built-in layers that are written as a user's own, beside their papers' formulas for all pairs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, values
from kind_formulas import Parameters, commnet, film, film_scores, gated, recurrent
from torch import Tensor

from hyrt.fullgraph.plan import is_decomposable
from hyrt.nn.architecture import Architecture
from hyrt.nn.message_passing.layer import SagaLayer
from hyrt.nn.message_passing.layers import CommNetLayer, FilmLayer, GatedLayer, RecurrentLayer
from hyrt.nn.model import GNN
from hyrt.nn.models.model_kind import ModelKind
from hyrt.nn.torch_threads import torch_threads

GRAPH = awkward_graph()
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (lambda: GatedLayer(10, 7), gated),
        (lambda: CommNetLayer(10, 7), commnet),
        (lambda: RecurrentLayer(10, 7), recurrent),
        (lambda: RecurrentLayer(10, 10), recurrent),
        (lambda: RecurrentLayer(10, 4, scores=True), recurrent),
        (lambda: FilmLayer(10, 7), film),
        (lambda: FilmLayer(10, 4, scores=True), film_scores),
    ],
    ids=["ggcn", "commnet", "ggnn", "ggnn, one width", "ggnn, scores", "gnn-film", "gnn-film, scores"],
)
def test_a_layer_is_its_formula(
    layer: Callable[[], SagaLayer], formula: Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]
) -> None:
    torch.manual_seed(2)
    ours, block = layer(), sampled(GRAPH, range(50), [-1]).blocks[0]
    with torch.no_grad():
        for parameter in ours.parameters():  # Some begin at zero.
            parameter.add_(0.1 * torch.randn(parameter.shape))
    counts = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
    rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    counts.index_put_(
        (torch.from_numpy(rows), torch.from_numpy(block.columns).long()),
        torch.tensor(1.0).double(),
        accumulate=True,
    )
    x = torch.from_numpy(values(GRAPH)[block.sources]).requires_grad_()
    wide = x.detach().double().requires_grad_()
    parameters = {name: p.detach().double().requires_grad_() for name, p in ours.named_parameters()}
    expected = formula(parameters, wide[: block.num_dst], wide, counts)
    result = ours(block, x)
    along = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    theirs = torch.autograd.grad(expected, [wide, *parameters.values()], along)
    mine = torch.autograd.grad(result, [x, *ours.parameters()], along.float())
    for a, b in zip([result, *mine], [expected, *theirs], strict=True):
        assert (a.detach().double() - b.detach()).abs().max() <= 1e-4 * max(1e-3, b.detach().abs().max())


@pytest.mark.parametrize("name", ["ggcn", "commnet", "ggnn", "gnn-film"])
def test_a_kind_makes_models_for_blocks_and_whole_graphs(name: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["hyrt.models"]
    kind: ModelKind = EntryPoint(name, declared[name], "hyrt.models").load()()
    a = Architecture(kind=name, in_features=10, hidden=8, num_classes=3, norm="layer", residual=True)
    layers = [kind.layer(a, 10, 8, last=False), kind.layer(a, 8, 3, last=True)]
    model = GNN(a, layers)
    batch = sampled(GRAPH, range(20), [5, 5])
    x = torch.from_numpy(values(GRAPH)[batch.blocks[0].sources])
    assert model(batch.blocks, x).shape == (20, 3)
    assert is_decomposable(model)
