"""Device under test with references for its results, and the verdicts of checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import Device, DeviceOptions, StepResult
from hyrt.errors import DeviceFaultError, HyrtError, PluginConflictError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.nn.model import GNN
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.cases import ModelCase, ReferenceResult, reference_step

Outcome = Literal["passed", "failed", "skipped"]


class CheckFailedError(Exception):
    """Error of a check that the device has not passed, because it violates the protocol."""


class CheckSkippedError(Exception):
    """Exception of a check that does not apply to the device, with the reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check."""

    name: str
    """Text of the requirement."""
    outcome: Outcome
    """Outcome: `passed`, `failed` or `skipped`."""
    detail: str = ""
    """Expected and actual behaviour, or the reason for skipping the check."""
    seconds: float = 0.0
    """Duration of the check in seconds."""

    def __str__(self) -> str:
        word = self.outcome.upper() if self.outcome == "failed" else self.outcome
        return f"{word:<8} {self.name}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts about a device; as text, one line per verdict."""

    device: str
    """Name and description of the device."""
    verdicts: tuple[Verdict, ...]
    """Verdicts, in the order of the checks."""

    @property
    def passed(self) -> tuple[Verdict, ...]:
        return self._having("passed")

    @property
    def failed(self) -> tuple[Verdict, ...]:
        return self._having("failed")

    @property
    def skipped(self) -> tuple[Verdict, ...]:
        return self._having("skipped")

    def _having(self, outcome: Outcome) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == outcome)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.skipped)} skipped, {len(self.failed)} failed"
        return "\n".join([f"{self.device}: {counts}", *(f"  {verdict}" for verdict in self.verdicts)])


class ConformanceError(HyrtError):
    """Error of a device that violates the protocol. The message has one line for each distinct failure.

    Parameters
    ----------
    report
        All verdicts.
    """

    is_multiline = True

    def __init__(self, report: Report) -> None:
        self.report = report
        alike: dict[str, list[str]] = {}
        for verdict in report.failed:
            alike.setdefault(verdict.detail, []).append(verdict.name)
        lines = [f"  {', '.join(names)}: {detail}" for detail, names in alike.items()]
        super().__init__(
            f"{report.device} does not follow the device protocol: {len(report.failed)} of "
            f"{len(report.verdicts)} checks failed:\n" + "\n".join(lines)
        )


T = TypeVar("T")

OpenFn = Callable[[DeviceOptions], Device]

# Tolerances of float32 sums of a few hundred terms in any order, relative to the largest element of the
# gradient and of all gradients.
_TENSOR_TOLERANCE = 1e-4
_OVERALL_TOLERANCE = 5e-6


@dataclass(slots=True)
class Trial:
    """Device under test, with the state that its checks share."""

    open_fn: OpenFn
    """Function that opens a new device."""
    computes: bool = True
    """Whether the device really computes."""
    break_next: Callable[[Device], None] | None = None
    """Function that makes the next propagate of a device fail, or None."""
    cycles: int = 200
    """Number of open and close cycles in the leak check."""
    modules: set[str] = field(default_factory=set)
    """Names of the modules that define the classes of the devices."""
    _opened: list[Device] = field(default_factory=list)
    _graphs: dict[tuple[Any, ...], Graph] = field(default_factory=dict)
    _supported: dict[int, ModelCase] = field(default_factory=dict)

    def open(self, *, threads: int = 2, memory_bytes: int | None = None) -> Device:
        """Open a new device, which `close_all` will close."""
        device = self.open_fn(DeviceOptions(threads=threads, memory_bytes=memory_bytes))
        self._opened.append(device)
        self.modules.add(type(device).__module__)
        return device

    def close_all(self) -> None:
        """Close all devices that a check has opened, in any state; raise the first error afterwards."""
        opened, self._opened = self._opened, []
        errors: list[Exception] = []
        for device in opened:
            try:
                device.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def open_loaded(self, model: torch.nn.Module | None = None, **options: Any) -> Device:
        """Open a device and load a model, by default a supported model."""
        device = self.open(**options)
        load_model(device, self.model() if model is None else model)
        return device

    def model(self) -> GNN:
        """Build a model that the device supports."""
        return self.supported_case().build()

    def supported_case(self, layers: int = 2) -> ModelCase:
        """Return the first supported model, preferably with `layers` layers."""
        if layers not in self._supported:
            candidates = sorted(cases.model_cases(), key=lambda case: case.settings["layers"] != layers)
            for case in candidates:
                device = self.open()
                with suppress(UnsupportedModelError, PluginConflictError):
                    load_model(device, case.build())
                    self._supported[layers] = case
                    break
            else:
                raise CheckFailedError(
                    "expected the device to support at least one of the models; it refuses all"
                )
        return self._supported[layers]

    def graph(self, *, sparse: bool = False, row_format: str = "float32", model: GNN | None = None) -> Graph:
        """Return a graph for a model, by default for `model()`."""
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
        """Return a mini-batch of rows for a model, by default for `model()`."""
        model = model or self.model()
        layers = model.architecture.layers
        chosen = cases.sample_targets() if targets is None else targets
        return cases.sampled_batch(self.graph(model=model), layers, chosen, cases.ROWS, step=step)


def load_model(device: Device, model: torch.nn.Module) -> list[torch.Tensor]:
    """Load a model with its trainable parameters, and return these parameters."""
    parameters = trainable_parameters(model)
    device.load(model, parameters)
    return parameters


def trainable_parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters that the trainer passes to `load` and `update`."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def build_or_skip(case: ModelCase) -> GNN:
    """Build the model of a case, or skip the check if two packages declare the model's kind."""
    try:
        return case.build()
    except PluginConflictError as conflict:
        raise CheckSkippedError(str(conflict)) from conflict


def load_or_skip(trial: Trial, model: torch.nn.Module) -> Device:
    """Open a device with the model; skip the check if the device rejects the model as the protocol says."""
    device = trial.open()
    try:
        load_model(device, model)
    except UnsupportedModelError as refusal:
        check_refusal(refusal, model, device.info.name)
        # The device must still be usable after it has rejected a model.
        load_model(device, trial.model())
        raise CheckSkippedError(f"refused: {refusal}") from refusal
    return device


def check_refusal(refusal: UnsupportedModelError, model: torch.nn.Module, device: str) -> None:
    """Check that the error of a rejected model names the device and the layer."""
    text = str(refusal)
    require(device in text, f"UnsupportedModelError to name the device {device}", f"got: {text}")
    names = {name for name, _ in model.named_modules() if name}
    names |= {type(module).__name__ for module in model.modules()} | {"train.precision", "layer"}
    require(any(name in text for name in names), "UnsupportedModelError to name the layer", f"got: {text}")


def run_step(device: Device, batch: MiniBatch) -> StepResult:
    """Transfer and propagate a mini-batch."""
    result = device.propagate(device.transfer(batch))
    kind = type(result).__name__
    require(isinstance(result, StepResult), "propagate to return a StepResult", f"it returned {kind}")
    for number, gradient in enumerate(result.gradients):
        require(
            isinstance(gradient, torch.Tensor),
            f"gradient {number} to be a tensor (zeros if the loss does not depend on the parameter)",
            f"it is {type(gradient).__name__}",
        )
    return result


def check_step(device: Device, model: Any, batch: MiniBatch, graph: Graph, where: str = "") -> None:
    """Check that a step of a loaded device agrees with the float64 reference; `where` names the case."""
    check_agreement(run_step(device, batch), compute_reference(model, batch, graph), where)


def compute_reference(model: Any, batch: MiniBatch, graph: Graph) -> ReferenceResult:
    """Compute the float64 reference of a mini-batch with relabelled blocks."""
    sources = batch.blocks[0].sources
    assert sources is not None
    return reference_step(model, trainable_parameters(model), batch, cases.dense_rows(graph, sources))


def check_agreement(result: StepResult, reference: ReferenceResult, where: str = "") -> None:
    """Check loss sum, correct count and gradient sums against the reference.

    Raises CheckFailedError, which names the wrong quantity and its deviation.
    """
    suffix = f" ({where})" if where else ""
    deviation = abs(result.loss_sum - reference.loss_sum)
    close = deviation <= 1e-5 * (1 + reference.loss_magnitude)
    require(close, f"the loss sum {reference.loss_sum:.7g}", f"it is {result.loss_sum:.7g}{suffix}")
    min_correct, max_correct = reference.correct
    correct = result.counts.get("correct", 0)
    require(
        min_correct <= correct <= max_correct,
        f"{min_correct} correct targets",
        f"the count is {correct}{suffix}",
    )
    gradients = list(result.gradients)
    require(
        len(gradients) == len(reference.gradients),
        f"one gradient for each of {len(reference.gradients)} parameters",
        f"got {len(gradients)}{suffix}",
    )
    overall = max(float(gradient.abs().max()) for gradient in reference.gradients)
    for number, (gradient, exact) in enumerate(zip(gradients, reference.gradients, strict=True)):
        shape = tuple(exact.shape)
        name = f"gradient {number} ({reference.names[number]})"
        require(
            gradient.shape == exact.shape,
            f"shape {shape} of {name}",
            f"its shape is {tuple(gradient.shape)}{suffix}",
        )
        bound = _TENSOR_TOLERANCE * float(exact.abs().max()) + _OVERALL_TOLERANCE * max(overall, 1.0)
        # NaN counts as an infinite difference.
        difference = (gradient.double() - exact).abs().nan_to_num(torch.inf)
        worst = int(difference.argmax())
        position = [int(i) for i in np.unravel_index(worst, shape)]
        actual, exact_value = float(gradient.flatten()[worst]), float(exact.flatten()[worst])
        require(
            float(difference.max()) <= bound,
            f"{name} within {bound:.1e}",
            f"the largest difference is {abs(actual - exact_value):.1e}, at {position}: {actual:.6g} "
            f"instead of {exact_value:.6g}{suffix}",
        )


def require(holds: bool, expected: str, actual: object) -> None:
    """Raise CheckFailedError with the expected and the actual behaviour unless `holds`."""
    if not holds:
        raise CheckFailedError(f"expected {expected}; {actual}")


def check_same_bits(result: StepResult, reference: StepResult, where: str) -> None:
    """Check that two results are bit-equal; raise CheckFailedError with the difference."""
    for attribute in ("loss_sum", "counts", "normalizer"):
        actual, expected = getattr(result, attribute), getattr(reference, attribute)
        require(
            actual == expected,
            f"the same {attribute} bit for bit {where}",
            f"got {actual!r} and {expected!r}",
        )
    numbers = len(result.gradients), len(reference.gradients)
    require(
        numbers[0] == numbers[1],
        f"the same number of gradients {where}",
        f"got {numbers[0]} and {numbers[1]}",
    )
    for number, (a, b) in enumerate(zip(result.gradients, reference.gradients, strict=True)):
        require(torch.equal(a, b), f"gradient {number} to be the same bit for bit {where}", "it differs")


def copy_result(result: StepResult) -> StepResult:
    """Return a copy of a result that later steps cannot overwrite."""
    gradients = [gradient.clone() for gradient in result.gradients]
    return replace(result, counts=dict(result.counts), gradients=gradients, seconds=dict(result.seconds))


def require_fault(doing: str, call: Callable[[], Any]) -> DeviceFaultError:
    """Check that a call raises a DeviceFaultError, and return the error."""
    try:
        call()
    except DeviceFaultError as fault:
        return fault
    except Exception as error:
        raise CheckFailedError(
            f"expected DeviceFaultError from {doing}; it raised {type(error).__name__}: {error}"
        ) from error
    raise CheckFailedError(f"expected DeviceFaultError from {doing}; it returned")


def split_targets(targets: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """Split targets into pieces of the given sizes and a remainder."""
    return list(np.split(targets, np.cumsum(sizes)))


def skip_unless(applies: bool, reason: str) -> None:
    """Skip the check unless it applies."""
    if not applies:
        raise CheckSkippedError(reason)


def run_in_thread(call: Callable[[], T]) -> T:
    """Run a call on a new thread, and return its result or raise its exception."""
    (result,) = run_concurrently(call)
    return result


def run_concurrently(*calls: Callable[[], T]) -> list[T]:
    """Run calls concurrently and return their results. When all have ended, raise the first call's error."""
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
