"""One device on trial: opens it, and compares what it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import Device, DeviceOptions, StepResult
from hyrt.errors import DeviceFault, PluginConflict, UnsupportedModel
from hyrt.graph.graph import Graph
from hyrt.nn.model import GNN
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.cases import ModelCase
from hyrt.testing.reference import Expected, expected_step
from hyrt.testing.verdicts import Failed, Skipped

T = TypeVar("T")

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
    modules: set[str] = field(default_factory=set)
    """Where the devices' classes are written."""
    _opened: list[Device] = field(default_factory=list)
    _graphs: dict[tuple[Any, ...], Graph] = field(default_factory=dict)
    _supported: dict[int, ModelCase] = field(default_factory=dict)

    def open(self, *, threads: int = 2, memory_bytes: int | None = None) -> Device:
        """A fresh device; `close_all` closes it."""
        device = self.open_fn(DeviceOptions(threads=threads, memory_bytes=memory_bytes))
        self._opened.append(device)
        self.modules.add(type(device).__module__)
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
                with suppress(UnsupportedModel, PluginConflict):
                    load(device, case.build())
                    self._supported[layers] = case
                    break
            else:
                raise Failed("expected it to support at least one of the models; it refuses all")
        return self._supported[layers]

    def graph(self, *, sparse: bool = False, row_format: str = "float32", model: GNN | None = None) -> Graph:
        """A graph for a model; by default for `model()`."""
        a = (model or self.model()).architecture
        key = (a.in_features, a.num_classes, sparse, row_format)
        if key not in self._graphs:
            self._graphs[key] = cases.make_graph(
                a.in_features, a.num_classes, sparse=sparse, row_format=row_format
            )
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


def built(case: ModelCase) -> GNN:
    """A case's model; the check is skipped where another package claims its kind: no fault of the device."""
    try:
        return case.build()
    except PluginConflict as conflict:
        raise Skipped(str(conflict)) from conflict


def loaded_or_skipped(trial: Trial, model: torch.nn.Module) -> Device:
    """A device with the model; the check is skipped where the device refuses it in the right words."""
    device = trial.open()
    try:
        load(device, model)
    except UnsupportedModel as refusal:
        check_refusal(refusal, model, device.info.name)
        # A refusal is no fault.
        load(device, trial.model())
        raise Skipped(f"refused: {refusal}") from refusal
    return device


def check_refusal(refusal: UnsupportedModel, model: torch.nn.Module, device: str) -> None:
    """Demand that a refusal names the device and the layer."""
    text = str(refusal)
    demand(device in text, f"UnsupportedModel to name the device {device}", f"it says: {text}")
    names = {name for name, _ in model.named_modules() if name}
    names |= {type(module).__name__ for module in model.modules()} | {"train.precision", "layer"}
    demand(any(name in text for name in names), "UnsupportedModel to name the layer", f"it says: {text}")


def step(device: Device, batch: MiniBatch) -> StepResult:
    """Transfer and propagate."""
    result = device.propagate(device.transfer(batch))
    kind = type(result).__name__
    demand(isinstance(result, StepResult), "propagate to return a StepResult", f"it returned {kind}")
    for number, gradient in enumerate(result.gradients):
        demand(
            isinstance(gradient, torch.Tensor),
            f"gradient {number} to be a tensor, of zeros where the loss does not depend on the parameter",
            f"it is {type(gradient).__name__}",
        )
    return result


def check_step(device: Device, model: Any, batch: MiniBatch, graph: Graph, where: str = "") -> None:
    """Demand that a step of a loaded device gives the sums of the float64 reference; `where` is the case."""
    agree(step(device, batch), expected(model, batch, graph), where)


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
    close = off <= 1e-5 * (1 + wanted.loss_magnitude)
    demand(close, f"the loss sum {wanted.loss_sum:.7g}", f"it is {result.loss_sum:.7g}{place}")
    least, most = wanted.correct
    correct = result.counts.get("correct", 0)
    demand(least <= correct <= most, f"{least} correct targets", f"it counts {correct}{place}")
    gradients = list(result.gradients)
    demand(
        len(gradients) == len(wanted.gradients),
        f"one gradient for each of {len(wanted.gradients)} parameters",
        f"got {len(gradients)}{place}",
    )
    overall = max(float(gradient.abs().max()) for gradient in wanted.gradients)
    for number, (found, exact) in enumerate(zip(gradients, wanted.gradients, strict=True)):
        shape = tuple(exact.shape)
        what = f"gradient {number} {shape} of {wanted.names[number]}"
        demand(found.shape == exact.shape, what, f"its shape is {tuple(found.shape)}{place}")
        bound = _PART_OF_OWN * float(exact.abs().max()) + _PART_OF_ALL * max(overall, 1.0)
        # A difference that is no number is the largest.
        apart = (found.double() - exact).abs().nan_to_num(torch.inf)
        worst = int(apart.argmax())
        at = [int(i) for i in np.unravel_index(worst, shape)]
        mine, other = float(found.flatten()[worst]), float(exact.flatten()[worst])
        demand(
            float(apart.max()) <= bound,
            f"{what} within {bound:.1e}",
            f"the largest difference is {abs(mine - other):.1e}, at {at}: {mine:.6g} "
            f"instead of {other:.6g}{place}",
        )


def demand(holds: bool, wanted: str, got: object) -> None:
    """Go on if it holds.

    Raises
    ------
    Failed
        Saying what was expected and what was got.
    """
    if not holds:
        raise Failed(f"expected {wanted}; {got}")


def same_bits(found: StepResult, wanted: StepResult, where: str) -> None:
    """Demand bit-equal results.

    Raises
    ------
    Failed
        Naming what differs.
    """
    for what in ("loss_sum", "counts", "normalizer"):
        mine, other = getattr(found, what), getattr(wanted, what)
        demand(mine == other, f"the same {what} bit for bit {where}", f"got {mine!r} and {other!r}")
    numbers = len(found.gradients), len(wanted.gradients)
    demand(numbers[0] == numbers[1], f"as many gradients {where}", f"got {numbers[0]} and {numbers[1]}")
    for number, (a, b) in enumerate(zip(found.gradients, wanted.gradients, strict=True)):
        demand(torch.equal(a, b), f"gradient {number} to be the same bit for bit {where}", "it differs")


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


def on_a_thread(call: Callable[[], T]) -> T:
    """What a call returns, or raises, on a new thread."""
    (result,) = together(call)
    return result


def together(*calls: Callable[[], T]) -> list[T]:
    """What calls return that run at the same time; the first one's error is raised when all are over."""
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:
            errors[number] = error

    threads = [
        threading.Thread(target=run, args=(number,), name=f"hyrt.testing.{number}", daemon=True)
        for number in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in sorted(errors):
        raise errors[number]
    return [results[number] for number in range(len(calls))]
