"""One device on trial: opens it, and compares what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import Device, DeviceOptions, StepResult
from hyrt.errors import DeviceFault, UnsupportedModel
from hyrt.graph.graph import Graph
from hyrt.nn.model import GNN
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.cases import ModelCase
from hyrt.testing.reference import Expected, expected_step
from hyrt.testing.verdicts import Failed, Skipped

OpenFn = Callable[[DeviceOptions], Device]

# Float32 sums of some hundred terms, in any order: a part of the gradient's largest element, and of the
# largest of all.
_PART_OF_OWN = 1e-4
_PART_OF_ALL = 5e-6


@dataclass(slots=True)
class Trial:
    """What the checks share."""

    open_fn: OpenFn
    """Opens a fresh device."""
    computes: bool = True
    """Whether it computes, or only says so."""
    break_next: Callable[[Device], None] | None = None
    """Makes the device's next propagate fail, where the backend has a way to."""
    cycles: int = 200
    """How often the leak check opens and closes."""
    _opened: list[Device] = field(default_factory=list)
    _graphs: dict[tuple[Any, ...], Graph] = field(default_factory=dict)
    _supported: dict[int, ModelCase] = field(default_factory=dict)

    def open(self, *, threads: int = 2, memory_bytes: int | None = None) -> Device:
        """A fresh device; `close_all` closes it."""
        device = self.open_fn(DeviceOptions(threads=threads, memory_bytes=memory_bytes))
        self._opened.append(device)
        return device

    def close_all(self) -> None:
        """Close what a check has opened, in any state; the first error is raised when all are closed."""
        opened, self._opened = self._opened, []
        errors: list[Exception] = []
        for device in opened:
            try:
                device.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def loaded(self, model: torch.nn.Module | None = None, **options: Any) -> Device:
        """A fresh device with a model: by default one that it supports."""
        device = self.open(**options)
        load(device, self.model() if model is None else model)
        return device

    def model(self) -> GNN:
        """A model that the device supports."""
        return self.supported().build()

    def supported(self, layers: int = 2) -> ModelCase:
        """The first model that the device does not refuse, of so many layers where there is one."""
        if layers not in self._supported:
            candidates = sorted(cases.model_cases(), key=lambda case: case.settings["layers"] != layers)
            for case in candidates:
                device = self.open()
                with suppress(UnsupportedModel):
                    load(device, case.build())
                    self._supported[layers] = case
                    break
            else:
                raise Failed("expected it to support at least one of the models; it refuses all")
        return self._supported[layers]

    def graph(self, *, sparse: bool = False, half: bool = False, model: GNN | None = None) -> Graph:
        """A graph for a model; by default for `model()`."""
        a = (model or self.model()).architecture
        key = (a.in_features, a.num_classes, sparse, half)
        if key not in self._graphs:
            self._graphs[key] = cases.make_graph(a.in_features, a.num_classes, sparse=sparse, half=half)
        return self._graphs[key]

    def batch(
        self, targets: NDArray[Any] | None = None, *, model: GNN | None = None, step: int = cases.STEP
    ) -> MiniBatch:
        """A mini-batch of rows for a model; by default for `model()`."""
        model = model or self.model()
        layers = model.architecture.layers
        chosen = cases.some_targets() if targets is None else targets
        return cases.sampled(self.graph(model=model), layers, chosen, cases.ROWS, step=step)


def load(device: Device, model: torch.nn.Module) -> list[torch.Tensor]:
    """Load a model with its own trainable parameters; returns them."""
    parameters = trainable(model)
    device.load(model, parameters)
    return parameters


def trainable(model: torch.nn.Module) -> list[torch.Tensor]:
    """What the trainer hands to `load` and `update`."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def step(device: Device, batch: MiniBatch) -> StepResult:
    """Transfer and propagate."""
    return device.propagate(device.transfer(batch))


def expected(model: Any, batch: MiniBatch, graph: Graph) -> Expected:
    """The float64 reference of a mini-batch with relabelled blocks."""
    sources = batch.blocks[0].sources
    assert sources is not None
    return expected_step(model, trainable(model), batch, cases.dense_rows(graph, sources))


def agree(result: StepResult, wanted: Expected, where: str = "") -> None:
    """Demand the reference's loss sum, correct count and gradient sums.

    Raises
    ------
    Failed
        Naming what is off, and by how much.
    """
    place = f" ({where})" if where else ""
    off = abs(result.loss_sum - wanted.loss_sum)
    if not off <= 1e-5 * (1 + wanted.loss_magnitude):
        raise Failed(f"expected the loss sum {wanted.loss_sum:.7g}; it is {result.loss_sum:.7g}{place}")
    least, most = wanted.correct
    correct = result.counts.get("correct", 0)
    if not least <= correct <= most:
        raise Failed(f"expected {least} correct targets; it counts {correct}{place}")
    gradients = list(result.gradients)
    if len(gradients) != len(wanted.gradients):
        raise Failed(
            f"expected one gradient for each of {len(wanted.gradients)} parameters; got "
            f"{len(gradients)}{place}"
        )
    overall = max(float(gradient.abs().max()) for gradient in wanted.gradients)
    for number, (found, exact) in enumerate(zip(gradients, wanted.gradients, strict=True)):
        if found.shape != exact.shape:
            raise Failed(
                f"expected gradient {number} of shape {tuple(exact.shape)}; it has "
                f"{tuple(found.shape)}{place}"
            )
        error = float((found.double() - exact).abs().max())
        bound = _PART_OF_OWN * float(exact.abs().max()) + _PART_OF_ALL * max(overall, 1.0)
        if not error <= bound:
            raise Failed(
                f"expected gradient {number} {tuple(exact.shape)} of the loss sum within {bound:.1e}; an "
                f"element is {error:.1e} off{place}"
            )


def same_bits(found: StepResult, wanted: StepResult, where: str) -> None:
    """Demand bit-equal results.

    Raises
    ------
    Failed
        Naming what differs.
    """
    for what in ("loss_sum", "counts", "normalizer"):
        mine, other = getattr(found, what), getattr(wanted, what)
        if mine != other:
            raise Failed(f"expected the same {what} bit for bit {where}; got {mine!r} and {other!r}")
    if len(found.gradients) != len(wanted.gradients):
        raise Failed(
            f"expected as many gradients {where}; got {len(found.gradients)} and {len(wanted.gradients)}"
        )
    for number, (a, b) in enumerate(zip(found.gradients, wanted.gradients, strict=True)):
        if not torch.equal(a, b):
            raise Failed(f"expected gradient {number} to be the same bit for bit {where}; it differs")


def kept(result: StepResult) -> StepResult:
    """A copy that no later step can write to."""
    gradients = [gradient.clone() for gradient in result.gradients]
    return replace(result, counts=dict(result.counts), gradients=gradients, seconds=dict(result.seconds))


def must_fault(doing: str, call: Callable[[], Any]) -> DeviceFault:
    """Demand a DeviceFault.

    Raises
    ------
    Failed
        Saying what happened instead.
    """
    try:
        call()
    except DeviceFault as fault:
        return fault
    except Exception as error:
        raise Failed(
            f"expected DeviceFault from {doing}; it raised {type(error).__name__}: {error}"
        ) from error
    raise Failed(f"expected DeviceFault from {doing}; it returned")


def pieces(targets: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """Targets cut into pieces of the given sizes and a rest."""
    return list(np.split(targets, np.cumsum(sizes)))


def skip_unless(applies: bool, reason: str) -> None:
    """Leave a check that does not apply."""
    if not applies:
        raise Skipped(reason)
