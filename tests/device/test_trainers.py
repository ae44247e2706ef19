"""What every built-in trainer keeps of the device protocol."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from graphs import dense_features, random_graph
from unit.nn.dense_reference import parameters_of, scores

from hyrt.device import DeviceOptions
from hyrt.errors import DeviceFault
from hyrt.nn.model import GNN, Architecture
from hyrt.registry import find_device
from hyrt.runtime.load import Loader, plan_input
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.workers import Workers


@pytest.fixture(params=["cpu", "null"])
def opened(request: pytest.FixtureRequest):
    backend, info = find_device(request.param)
    device = backend.open(info, DeviceOptions(threads=2))
    yield device
    device.close()


def parts(kind: str = "graphsage", seed: int = 0):
    graph = random_graph()
    torch.manual_seed(seed)
    model = GNN(Architecture(kind=kind, in_features=12, hidden=8, num_classes=3))
    sampler = NeighborSampler(graph, graph.split("train"), [4, 4], 32, 0)
    return graph, model, sampler


def minibatch(graph, model, sampler, info, units=None, fuse=True):
    plan = plan_input(model, graph, info.forms, fuse=fuse)
    workers = Workers(1, "t")
    batch = sampler.sample(0, sampler.units(0) if units is None else units, workers, in_place=plan.in_place)
    Loader(graph).load(batch, plan, workers)
    return batch


def test_one_gradient_a_parameter_in_its_shape(opened) -> None:
    graph, model, sampler = parts()
    parameters = list(model.parameters())
    opened.load(model, parameters)
    result = opened.propagate(opened.transfer(minibatch(graph, model, sampler, opened.info)))
    assert [g.shape for g in result.gradients] == [p.shape for p in parameters]
    assert result.targets == result.normalizer == 32


def test_closing_twice_and_after_use(opened) -> None:
    opened.close()
    opened.close()


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
@pytest.mark.parametrize("fuse", [True, False])
def test_cpu_sums_agree_with_dense_float64(kind: str, fuse: bool) -> None:
    """Loss and gradient sums against dense matrices that share no code with hyrt.nn."""
    graph, model, sampler = parts(kind)
    backend, info = find_device("cpu")
    device = backend.open(info, DeviceOptions(threads=2))
    device.load(model, list(model.parameters()))
    result = device.propagate(device.transfer(minibatch(graph, model, sampler, info, fuse=fuse)))
    device.close()
    batch = minibatch(graph, model, sampler, info, fuse=False)
    rows = torch.from_numpy(dense_features(graph)[batch.blocks[0].sources])
    p = parameters_of(model)
    out = scores("graphsage-mean" if kind == "graphsage" else kind, batch.blocks, rows, p)
    labels = torch.from_numpy(batch.labels)
    loss = -out.log_softmax(1)[torch.arange(len(labels)), labels].sum()
    loss.backward()
    assert result.loss_sum == pytest.approx(loss.item(), rel=1e-5)
    assert result.correct == int((out.argmax(1) == labels).sum())
    for mine, wanted in zip(result.gradients, p.values(), strict=True):
        assert wanted.grad is not None
        scale = float(wanted.grad.abs().max()) + 1e-6
        np.testing.assert_allclose(mine.numpy(), wanted.grad.numpy(), atol=1e-5 * scale)


def test_cpu_takes_new_weights_and_keeps_its_own_copy() -> None:
    graph, model, sampler = parts()
    backend, info = find_device("cpu")
    device = backend.open(info, DeviceOptions())
    device.load(model, list(model.parameters()))
    batch = minibatch(graph, model, sampler, info)
    before = device.propagate(device.transfer(batch)).loss_sum
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert device.propagate(device.transfer(batch)).loss_sum == before
    device.update(list(model.parameters()))
    after = device.propagate(device.transfer(batch)).loss_sum
    assert after == pytest.approx(32 * np.log(3), rel=1e-6)
    device.close()


def test_cpu_without_targets_and_with_one() -> None:
    graph, model, sampler = parts()
    backend, info = find_device("cpu")
    device = backend.open(info, DeviceOptions())
    device.load(model, list(model.parameters()))
    none = device.propagate(device.transfer(minibatch(graph, model, sampler, info, sampler.units(0)[:0])))
    assert (none.loss_sum, none.correct, none.targets, list(none.gradients)) == (0.0, 0, 0, [])
    one = device.propagate(device.transfer(minibatch(graph, model, sampler, info, sampler.units(0)[:1])))
    assert one.targets == 1
    device.close()


def test_cpu_refuses_use_after_close_and_leaves_no_thread() -> None:
    graph, model, sampler = parts()
    backend, info = find_device("cpu")
    before = threading.active_count()
    for _ in range(50):
        device = backend.open(info, DeviceOptions(threads=3))
        device.load(model, list(model.parameters()))
        device.close()
    assert threading.active_count() == before
    batch = minibatch(graph, model, sampler, info)
    for _ in range(2):
        with pytest.raises(DeviceFault, match="used after close"):
            device.transfer(batch)
    with pytest.raises(DeviceFault, match="used after close"):
        device.load(model, list(model.parameters()))


class OwnModule(torch.nn.Module):
    """A user's model: it knows blocks only by their edge list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(12, 8)
        self.outer = torch.nn.Linear(8, 3)

    def forward(self, blocks, x):
        for block, layer in zip(blocks, (self.inner, self.outer), strict=True):
            sources, destinations = block.edge_index()
            total = torch.zeros(block.num_dst, x.shape[1], dtype=x.dtype)
            total = total.index_add(0, destinations, x[sources])
            x = layer(total + x[: block.num_dst]).tanh()
        return x


def test_cpu_trains_a_module_of_the_users() -> None:
    graph, _, sampler = parts()
    model = OwnModule()
    backend, info = find_device("cpu")
    device = backend.open(info, DeviceOptions())
    device.load(model, list(model.parameters()))
    batch = minibatch(graph, model, sampler, info)
    assert torch.is_tensor(batch.inputs)
    result = device.propagate(device.transfer(batch))
    scores = model(batch.blocks, batch.inputs)
    loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.labels), reduction="sum")
    loss.backward()
    for mine, wanted in zip(result.gradients, model.parameters(), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted.grad.numpy(), rtol=1e-5, atol=1e-6)
    device.close()
