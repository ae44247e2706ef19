"""Modules that a user writes over blocks train like dense PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dense_reference as dense
import pytest
import torch
from block_cases import awkward_graph, sampled, values
from closeness import assert_close, gradients
from torch import Tensor, nn

from hyrt.errors import UnsupportedModelError
from hyrt.nn.architecture import Architecture
from hyrt.nn.description import ModelDescription, describe
from hyrt.nn.layer import ModelInputs, Rows, get_model_inputs
from hyrt.nn.layers import SageLayer
from hyrt.nn.model import GNN
from hyrt.nn.model_errors import RngGuard
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block

Mix = Callable[[Block, Tensor], Tensor]


def by_aggregate(block: Block, x: Tensor) -> Tensor:
    return aggregate(block, x, "mean")


def by_edge_index(block: Block, x: Tensor) -> Tensor:
    source, destination = block.edge_index()
    total = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destination, x[source])
    count = torch.bincount(destination, minlength=block.num_dst).clamp(min=1)
    return total / count[:, None]


def by_pyg(block: Block, x: Tensor) -> Tensor:
    conv = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    mean: Tensor = conv.SimpleConv("mean")((x, x[: block.num_dst]), block.edge_index())
    return mean


def by_dense_matrix(block: Block, x: Tensor) -> Tensor:
    return dense.mixing_matrix(block, "mean") @ x


class OwnModule(nn.Module):
    """tanh(A x + B mean), twice."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = mix
        self.own = nn.ModuleList([nn.Linear(10, 8), nn.Linear(8, 3)])
        self.neighbors = nn.ModuleList([nn.Linear(10, 8, bias=False), nn.Linear(8, 3, bias=False)])

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for block, own, neighbors in zip(blocks, self.own, self.neighbors, strict=True):
            x = torch.tanh(own(x[: block.num_dst]) + neighbors(self.mix(block, x)))
        return x


@pytest.mark.parametrize("mix", [by_aggregate, by_edge_index, by_pyg])
def test_gradients_and_weights_follow_the_dense_reference_over_steps(mix: Mix) -> None:
    graph = awkward_graph()
    models = [OwnModule(mix).double(), OwnModule(by_dense_matrix).double()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.3) for model in models]
    for step in range(6):
        batch = sampled(graph, range(step, 90, 5), [4, 4], step=step)
        x = torch.from_numpy(values(graph)[batch.blocks[0].sources]).double()
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            scores = model(batch.blocks, x)
            nn.functional.cross_entropy(scores, torch.from_numpy(batch.labels)).backward()
            optimizer.step()
        mine, reference = (gradients(model.named_parameters()) for model in models)
        assert_close(mine, reference, 1e-12)
    weights, reference = (dict(model.named_parameters()) for model in models)
    assert_close(weights, reference, 1e-12)


def architecture() -> Architecture:
    return Architecture(in_features=10, hidden=8, num_classes=3)


class HalfScores(GNN):
    """Returns something else than the model that it is derived from."""

    def forward(self, blocks: Sequence[Block], x: Rows) -> Tensor:
        return 0.5 * super().forward(blocks, x)


class DoubledLayers(GNN):
    def layer(self, i: int, block: Block, x: Rows) -> Tensor:
        return 2 * super().layer(i, block, x)


class NegatedLayer(SageLayer):
    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> Tensor:
        return -super().forward(block, x, relu=relu)


def with_a_derived_layer() -> GNN:
    model = GNN(architecture())
    model.layers[0] = NegatedLayer(10, 8)
    return model


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (HalfScores(architecture()), r"HalfScores \(its forward does not match its description"),
        (DoubledLayers(architecture()), r"DoubledLayers \(its forward does not match its description"),
        (with_a_derived_layer(), r"layer 'layers.0' \(NegatedLayer"),
    ],
)
def test_a_derived_class_is_not_described_as_the_one_it_is_derived_from(model: GNN, named: str) -> None:
    describe(GNN(architecture()), "npu:0")
    with pytest.raises(UnsupportedModelError, match=f"npu:0 cannot run {named}"):
        describe(model, "npu:0")


def test_a_derived_class_may_describe_itself_anew() -> None:
    class Described(HalfScores):
        def description(self) -> ModelDescription:
            return GNN(architecture()).description()

    assert len(describe(Described(architecture()), "npu:0").layers) == 2


def test_a_derived_model_with_a_forward_of_its_own_is_given_rows() -> None:
    assert get_model_inputs(GNN(architecture())) != ModelInputs()
    assert get_model_inputs(HalfScores(architecture())) == ModelInputs()


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"norm": "layer"}, r"layer 'norms.0' \(model.norm=none removes it\) .*: train it on"),
        (
            {"kind": "gin", "norm": "layer", "layers": 1},
            r"layer 'layers.0.norm' \(model.norm=none removes it\) .*: train it on",
        ),
        ({"residual": True}, r"layer 'shortcuts.0' \(model.residual=false removes it\) .*: train it on"),
        ({"dropout": 0.5}, "GNN uses dropout, .* set model.dropout=0"),
        (
            {"input_dropout": 0.5},
            "GNN uses dropout, which npu:0 does not support: .* and model.input_dropout=0, or train it on",
        ),
    ],
)
def test_who_is_refused_is_told_which_setting_is_in_the_way(settings: dict[str, Any], remedy: str) -> None:
    model = GNN(Architecture(in_features=10, hidden=8, num_classes=3, **settings))
    with pytest.raises(UnsupportedModelError, match=remedy):
        describe(model, "npu:0", dropout=False)
    if "dropout" in remedy:
        assert describe(model, "npu:0").layers


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=self.training)


def test_a_module_and_its_copies_are_asked_whether_they_draw_in_each_thread_that_trains() -> None:
    model, x = Noisy(), torch.ones(3, 2)
    refused = RngGuard(model)
    # An evaluation says nothing of what training draws.
    model.eval()(x)
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"Noisy draws random numbers .*line \d+, in forward"):
        model(x)
    torch.rand(1)  # Only the module is asked.
    with ThreadPoolExecutor(1) as other, pytest.raises(UnsupportedModelError, match="Noisy draws"):
        other.submit(copy.deepcopy(model), x).result()
    refused.remove()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(model, x).result().shape == x.shape
