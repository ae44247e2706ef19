"""Device protocol: the interface that a backend implements in order to train."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from hyrt.checks import check_int, show
from hyrt.errors import ArgumentError, DeviceFaultError, HyrtError
from hyrt.formatting import short_repr
from hyrt.fullgraph.chunk_stats import ChunkedStep

if TYPE_CHECKING:
    import torch

    from hyrt.nn.hetero.inputs import SparseGradient
    from hyrt.sampling.minibatch import MiniBatch

InputForm = Literal["rows", "quantized", "sparse", "aggregated", "in_place", "ids", "cached", "hetero"]
"""Form of the inputs that `transfer` receives in a mini-batch; see `hyrt.pipeline.trainer.InputPlan`."""

HOST_FORMS: tuple[InputForm, ...] = ("rows", "sparse", "aggregated", "in_place", "hetero")
"""Input forms that a torch module on the host accepts."""

Span = tuple[str, int, int]
"""Operation that a device queue has executed: name, start and end in nanoseconds of the device clock."""

QueueListener = Callable[[str, Sequence[Span]], None]
"""Callback that receives a queue's name and operations soon after the last of these operations has ended."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Effective computation and transfer rates of a device."""

    macs_per_s: float
    """Multiply-accumulates per second in fp32 matrix products."""
    memory_bytes_per_s: float
    """Bandwidth of the device memory in bytes per second."""
    link_bytes_per_s: float
    """Bandwidth from host memory to the device, in bytes/s; infinite if the device reads host memory."""
    source: str
    """Origin of the rates: `measured <date>`, or `assumed` and their source."""

    def __post_init__(self) -> None:
        for name in ("macs_per_s", "memory_bytes_per_s", "link_bytes_per_s"):
            value = getattr(self, name)
            if not (_is_number(value) and value > 0) or (value == math.inf and name != "link_bytes_per_s"):
                raise ValueError(
                    f"rates: {name} must be a number above 0, got {value!r}: set rates=None if it is unknown"
                )
        if not isinstance(self.source, str):
            raise ValueError(f"rates: source must be a string such as 'assumed', got {show(self.source)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Description of a device that `probe` found."""

    kind: str
    index: int
    """Number of the device within its kind; `kind` and `index` form the device name, such as `cuda:0`."""
    description: str
    """One-line description for users."""
    memory_bytes: int
    zero_copy: bool = False
    """Whether the device reads host memory in place."""
    forms: tuple[InputForm, ...] = ("rows",)
    """Input forms that the device accepts; every device accepts `rows`."""
    host_cores: int = 0
    """Maximum number of host cores on which the device computes; 0 for an accelerator. A device that computes
    on the host shares cores with the CPU stages, so `auto` never combines it with `cpu`.
    """
    link: str = ""
    """Connection to the host as shown to users, such as `PCIe` or `host memory`."""
    rates: Rates | None = None
    """Assumed rates; None if the rates are unknown before a measurement."""
    whole_graphs: bool = False
    """Whether the device can train on the full graph, with targets given by `MiniBatch.target_rows`."""
    simulated: bool = False
    """Whether the device simulates the hardware in its name. Simulations are never chosen automatically."""

    def __post_init__(self) -> None:
        for name in ("index", "memory_bytes", "host_cores"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(
                    f"DeviceInfo of {self.kind!r}: {name} must be an integer of at least 0, got {value!r}"
                )
        for name in ("kind", "description", "link"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise ValueError(f"DeviceInfo of {self.kind!r}: {name} must be a string, got {text!r}")
            # Text from a driver may contain any characters: make it one printable line for the terminal.
            shown = "".join(letter if letter.isprintable() else " " for letter in text)
            object.__setattr__(self, name, " ".join(shown.split()))

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Options of a run that apply to one device."""

    threads: int = 1
    """Maximum number of CPU threads (or compute units) of a device that computes on the host."""
    memory_bytes: int | None = None
    """Maximum bytes of device memory for mini-batches and weights; None lets the device choose. A device that
    computes in host memory ignores this option.
    """

    def __post_init__(self) -> None:
        check_int("DeviceOptions.threads", self.threads, 1)
        if self.memory_bytes is not None:
            check_int("DeviceOptions.memory_bytes", self.memory_bytes)


@dataclass(slots=True, kw_only=True, eq=False)
class StepResult:
    """Result of one training step on one trainer, summed over the trainer's targets."""

    loss_sum: float
    """Sum of the targets' losses, weighted if targets have weights."""
    counts: Mapping[str, float]
    """The objective's counts by name, including `targets`, the number of targets. Empty if there were no
    targets."""
    normalizer: float
    """Share of the mini-batch in the divisor of the loss; see `MiniBatch.normalizer`."""
    gradients: Sequence[torch.Tensor]
    """One host tensor per parameter: the gradient of `loss_sum`. Empty if there were no targets."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Times in seconds by stage, if the device measures them."""
    chunks: ChunkedStep | None = None
    """Statistics of the chunks if the step trained a full graph in chunks."""
    row_gradients: Sequence[SparseGradient] = ()
    """Gradients of the embedding rows that the mini-batch has read. These rows are not parameters."""

    __repr__ = short_repr

    @classmethod
    def empty(cls, normalizer: float) -> StepResult:
        """Return the result of a mini-batch without targets."""
        return cls(loss_sum=0.0, counts={}, normalizer=normalizer, gradients=())


def _remedy(error: Exception) -> str:
    """Return the remedy if the error means that host memory ran out, for which torch has no MemoryError."""
    if not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error):
        return ""
    return (
        ". The host is out of memory: lower model.hidden or data.batch_size, or set fullgraph.host_memory "
        "(with --full-graph)"
    )


class Health:
    """State of a device: after its first fault, or once it is closed, every later call raises.

    Parameters
    ----------
    name
        Device name, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._fault: DeviceFaultError | None = None
        self.has_failed = False
        """Whether a fault occurred before the device was closed."""

    def check(self) -> None:
        """Raise the recorded fault, if there is one."""
        if self._fault is not None:
            raise self._fault

    def loaded(self, made: Made | None) -> Made:
        """Return `made`, the result of `load`. Raises RuntimeError if it is None: no model was loaded."""
        if made is None:
            raise RuntimeError("no model has been loaded: call load first")
        return made

    def fail(self, doing: str, error: Exception) -> DeviceFaultError:
        """Record the first fault and return it, also if later faults follow."""
        self.has_failed = True
        if self._fault is None:
            self._fault = DeviceFaultError(
                f"{self._name}: {doing} failed: {type(error).__name__}: {error}{_remedy(error)}"
            )
            self._fault.__cause__ = error
        return self._fault

    @contextmanager
    def terminal(self, doing: str) -> Iterator[None]:
        """Run the block, and record any exception that hyrt does not define as a terminal fault."""
        self.check()
        try:
            yield
        except HyrtError as error:
            if isinstance(error, DeviceFaultError):
                self._fault = self._fault or error
                self.has_failed = True
            raise
        except Exception as error:
            raise self.fail(doing, error) from error

    def close(self) -> None:
        """Make every later call raise."""
        self._fault = DeviceFaultError(f"{self._name} was used after it was closed")


def check_parameters(parameters: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Check that new weights contain one tensor per model parameter, with the parameter's shape.

    Raises
    ------
    ArgumentError
        If the number of tensors or a shape is wrong. The message names the first wrong tensor.
    """
    import torch

    if not isinstance(parameters, Sequence) or len(parameters) != len(shapes):
        raise ArgumentError(
            f"parameters is {show(parameters)}: pass a list of {len(shapes)} tensors, one per parameter"
        )
    for number, (weight, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if not isinstance(weight, torch.Tensor) or tuple(weight.shape) != tuple(shape):
            raise ArgumentError(
                f"parameters[{number}] is {show(weight)}: pass a tensor of shape {list(shape)}"
            )


@runtime_checkable
class Device(Protocol):
    """Trainer on one device, which calls `transfer` and `propagate` concurrently from two threads.

    `load`, `update` and `close` are only called while neither of these runs. If a transferred mini-batch is
    never propagated, `close` must free it.

    Optional capabilities are declared as base classes: see `hyrt.device.capabilities`.
    """

    info: DeviceInfo

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        """Return the available devices of this kind. Must be cheap and never raise."""
        ...

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> Device:
        """Open a device. Raises DeviceUnavailableError with the remedy if this fails."""
        ...

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        """Create the model replica. Raises UnsupportedModelError that names the layer and the device."""
        ...

    def transfer(self, batch: MiniBatch) -> Any:
        """Copy a mini-batch's buffers to the device. The host buffers stay valid until the end of the step.

        Raises DeviceOutOfMemoryError if the mini-batch does not fit, and ArgumentError if its arrays are
        inconsistent. The device stays usable after both, and holds no memory for the mini-batch.
        """
        ...

    def propagate(self, staged: Any) -> StepResult:
        """Compute the forward and backward pass of a transferred mini-batch, and release the mini-batch.

        Raises DeviceFaultError, which is terminal, also if `staged` did not come from `transfer`. Raises
        DeviceOutOfMemoryError as `transfer` does.
        """
        ...

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Set new weights, in the order of `load`. Raises DeviceFaultError if the device fails."""
        ...

    def close(self) -> None:
        """Release all resources. Idempotent, and allowed after a fault."""
        ...
