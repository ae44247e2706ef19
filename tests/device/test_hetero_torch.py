"""Typed mini-batches on the torch device, over a double of its driver, beside the CPU trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hetero_cases import shape_of_small, small_batch, small_typed
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.cuda.device import CudaDevice
from unit.cuda.fake_driver import FakeDriver

from hyrt.device import HOST_FORMS, DeviceInfo, DeviceOptions, StepResult
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.operators import linear, tensor_ops

GRAPH = small_typed()
WEIGHTED = small_typed(weights=True)


def info(kind: str, forms: Any) -> DeviceInfo:
    return DeviceInfo(kind=kind, index=0, description="a test's", memory_bytes=1 << 30, forms=forms)


def one_below_the_other(parts: Any, *, low_precision: bool = False) -> torch.Tensor:
    return torch.cat([linear.linear(*part, low_precision=low_precision) for part in parts])


def step(device: Any, model: torch.nn.Module, graph: Graph) -> StepResult:
    device.load(model, [p for p in model.parameters() if p.requires_grad])
    result: StepResult = device.propagate(device.transfer(small_batch(graph, (3, 2))))
    device.close()
    return result


@pytest.mark.parametrize(
    ("kind", "options", "graph"),
    [
        ("rgcn", {}, GRAPH),
        ("rgcn", {}, WEIGHTED),
        ("rgcn", {"bases": 2}, GRAPH),
        ("rsage", {}, WEIGHTED),
        ("rgat", {}, GRAPH),
        ("rgat", {"edge_features": 1}, WEIGHTED),
        ("hgt", {}, GRAPH),
    ],
)
def test_torch_operators_give_what_the_loops_of_the_host_give(
    kind: str, options: dict[str, Any], graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = HeteroGNN(
        Architecture(
            kind=kind,
            in_features=8,
            hidden=8,
            num_classes=4,
            heads=2,
            dropout=0.3,
            options=options,
            shape=shape_of_small(graph),
        )
    )
    wanted = step(CpuDevice(info("cpu", HOST_FORMS), DeviceOptions()), model, graph)

    def on_device(x: Any, weight: Any, bias: Any, *flags: bool) -> Any:
        relu, low_precision = flags
        return tensor_ops.linear_tensors(x, weight, bias, relu=relu, low_precision=low_precision)

    # Products as on a device, although the double's tensors are the CPU's.
    monkeypatch.setattr(linear._Linear, "apply", on_device)
    for module in ("inputs", "relation_sums"):
        monkeypatch.setattr(f"hyrt.nn.hetero.{module}.grouped_linear", one_below_the_other)
    found = step(CudaDevice(info("cuda", ("rows", "hetero")), DeviceOptions(), FakeDriver()), model, graph)
    assert found.loss_sum == pytest.approx(wanted.loss_sum, rel=1e-5)
    for mine, theirs in zip(found.gradients, wanted.gradients, strict=True):
        bound = 1e-5 * (float(theirs.abs().max()) + 1e-6)
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=bound, rtol=1e-4)
    (mine,), (theirs,) = found.row_gradients, wanted.row_gradients
    assert np.array_equal(mine.rows, theirs.rows)
    bound = 1e-5 * float(theirs.values.abs().max())
    np.testing.assert_allclose(mine.values.numpy(), theirs.values.numpy(), atol=bound, rtol=1e-4)
