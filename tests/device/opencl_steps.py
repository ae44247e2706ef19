"""Steps on an OpenCL device, and the same from dense float64 matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl.programs import CPUS, GPU
from unit.nn.dense_reference import parameters_of, scores

from hyrt.device import DeviceOptions, StepResult
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.model import GNN
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch

KINDS = ("gcn", "graphsage", "gin")
PRODUCTS = ("chosen", "tiled")
# Of CPUs with other registers than this one's.
OTHERS = ("vector4", "vector8", "vector16")


def opened(product: str = "chosen", **options: Any) -> OpenclDevice:
    """The first device, driven as its type is; or, for `tiled`, as a GPU with a memory of its own is."""
    found = survey().found[0]
    asked = DeviceOptions(**options)
    if product == "tiled":
        info = replace(found.info, zero_copy=False, forms=("rows",))
        return OpenclDevice(info, found.device, asked, tuning=GPU)
    if product in OTHERS:
        return OpenclDevice(found.info, found.device, asked, tuning=CPUS[int(product.removeprefix("vector"))])
    return OpenclDevice.open(found.info, asked)


def shaken(model: GNN, seed: int = 0) -> GNN:
    """The model with the same random parameters each time, none at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def step(device: OpenclDevice, batch: MiniBatch) -> StepResult:
    return device.propagate(device.transfer(batch))


def batch_of(blocks: Sequence[Block], inputs: torch.Tensor | AggregatedFeatures, classes: int) -> MiniBatch:
    """A mini-batch of blocks made by hand."""
    targets = blocks[-1].destinations
    labels = np.arange(len(targets), dtype=np.int64) * 7 % classes
    return MiniBatch(0, targets, list(blocks), labels, None, float(len(targets)), inputs)


def reference(model: GNN, batch: MiniBatch, rows: torch.Tensor, **masks: Any) -> dict[str, Any]:
    """Loss sum, hits and gradients of a mini-batch with the given input rows, in float64."""
    kind = model.architecture.kind
    parameters = parameters_of(model)
    name = "graphsage-mean" if kind == "graphsage" else kind
    out = scores(name, batch.blocks, rows.double(), parameters, **masks)
    labels = torch.from_numpy(batch.labels)
    losses = -out.log_softmax(1)[torch.arange(len(labels)), labels]
    if batch.target_weights is not None:
        losses = losses * torch.from_numpy(batch.target_weights).double()
    losses.sum().backward()
    return {
        "loss": losses.sum().item(),
        "correct": int((out.argmax(1) == labels).sum()),
        "gradients": [p.grad for p in parameters.values()],
    }


def assert_agrees(found: StepResult, wanted: dict[str, Any], bound: float = 2e-5) -> None:
    """Loss and gradients are within `bound` of the reference, relative to its largest value."""
    assert abs(found.loss_sum - wanted["loss"]) <= bound * max(1.0, abs(wanted["loss"]))
    assert found.counts["correct"] == wanted["correct"]
    assert len(found.gradients) == len(wanted["gradients"])
    scale = max(float(g.abs().max()) for g in wanted["gradients"] if g.numel())
    for mine, exact in zip(found.gradients, wanted["gradients"], strict=True):
        assert mine.shape == exact.shape
        assert mine.dtype == torch.float32
        if exact.numel():
            off = float((mine.double() - exact).abs().max())
            # A probability near one differs from it by float32's rounding at least, however small the
            # gradient is.
            assert off <= bound * max(scale, 0.05), f"{off} off at scale {scale}"
