"""The device protocol: what a backend implements to be a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from hyrt.checks import check_int, show
from hyrt.errors import ArgumentError, DeviceFaultError, HyrtError
from hyrt.formatting import short_repr
from hyrt.fullgraph.chunks.chunk_stats import ChunkedStep

if TYPE_CHECKING:
    import torch

    from hyrt.nn.hetero.node_embedding import SparseGradient
    from hyrt.sampling.minibatch import MiniBatch

InputForm = Literal["rows", "narrow", "sparse", "aggregated", "in_place", "ids", "cached", "typed"]
"""What `MiniBatch.inputs` holds when it comes to `transfer`; see `hyrt.pipeline.trainer.InputPlan`."""

HOST_FORMS: tuple[InputForm, ...] = ("rows", "sparse", "aggregated", "in_place", "typed")
"""What a torch module on the host can take."""

Span = tuple[str, int, int]
"""What a device's queue has run: a name, and start and end in nanoseconds on the device's own clock."""

QueueListener = Callable[[str, Sequence[Span]], None]
"""Called with a queue's name and what it has run, soon after the last of it is over."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast a device is, in effective units."""

    macs_per_s: float
    """Multiply-accumulates of its fp32 matrix products."""
    memory_bytes_per_s: float
    """The bandwidth of its own memory."""
    link_bytes_per_s: float
    """The bandwidth from host memory to it; infinite where it reads host memory in place."""
    source: str
    """`measured <date>`, or `assumed` with where the figures are from."""

    def __post_init__(self) -> None:
        for name in ("macs_per_s", "memory_bytes_per_s", "link_bytes_per_s"):
            value = getattr(self, name)
            if not (_is_number(value) and value > 0) or (value == math.inf and name != "link_bytes_per_s"):
                raise ValueError(f"rates: {name} is {value!r}: give a number above 0, or None for rates")
        if not isinstance(self.source, str):
            raise ValueError(f"rates: source is {show(self.source)}: give a text, such as 'assumed'")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What `infer_shapes` found."""

    kind: str
    index: int
    """`kind` and `index`: together the device's name, as in `--devices cuda:0`."""
    description: str
    """One line for people."""
    memory_bytes: int
    """Memory of the device."""
    zero_copy: bool = False
    """Whether it reads host memory in place."""
    forms: tuple[InputForm, ...] = ("rows",)
    """Input forms it takes; every device takes `rows`."""
    host_cores: int = 0
    """How many of the host's own cores it computes with at most; 0 for an accelerator. A device that computes
    on the host shares cores with the CPU stages, so `auto` never takes it beside `cpu`."""
    link: str = ""
    """How it is attached, for people: `PCIe`, `host memory`."""
    rates: Rates | None = None
    """What it is assumed to reach; None where nothing is known before it is measured."""
    whole_graphs: bool = False
    """Whether it trains mini-batches of the whole graph, whose targets are some rows of the scores
    (`MiniBatch.target_rows`)."""
    simulated: bool = False
    """Whether it does not do its work on the hardware it is named after. Never chosen automatically."""

    def __post_init__(self) -> None:
        for name in ("index", "memory_bytes", "host_cores"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(
                    f"device info of {self.kind!r}: {name} is {value!r}: give a whole number of at least 0"
                )
        for name in ("kind", "description", "link"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise ValueError(f"device info of {self.kind!r}: {name} is {text!r}: give text")
            # A driver's own text may hold anything; here it is one line for a terminal.
            shown = "".join(letter if letter.isprintable() else " " for letter in text)
            object.__setattr__(self, name, " ".join(shown.split()))

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What a run asks of a device."""

    threads: int = 1
    """CPU threads (compute units) a device that computes on the host may use."""
    memory_bytes: int | None = None
    """The most of its own memory that mini-batches and weights may take; None leaves it to the device. A
    device that trains in host memory in place has no memory of its own and ignores it."""

    def __post_init__(self) -> None:
        check_int("threads of the device options", self.threads, 1)
        if self.memory_bytes is not None:
            check_int("memory_bytes of the device options", self.memory_bytes)


@dataclass(slots=True, kw_only=True, eq=False)
class StepResult:
    """What a trainer computed in a step, as sums over its targets."""

    loss_sum: float
    """Sum of the (weighted) losses."""
    counts: Mapping[str, float]
    """What the objective counts, by its names; `targets`, the number of targets, is one of them. Empty where
    there were no targets."""
    normalizer: float
    """The mini-batch's share of the divisor; see `MiniBatch.normalizer`."""
    gradients: Sequence[torch.Tensor]
    """One host tensor a parameter, the gradient of `loss_sum`; empty when there were no targets."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Device times by stage, where the device measures its own."""
    chunks: ChunkedStep | None = None
    """What it took, where a whole graph was trained in chunks."""
    row_gradients: Sequence[SparseGradient] = ()
    """Those of learned rows that the mini-batch has read, which are no parameters."""

    __repr__ = short_repr

    @classmethod
    def empty(cls, normalizer: float) -> StepResult:
        """Of a mini-batch without targets."""
        return cls(loss_sum=0.0, counts={}, normalizer=normalizer, gradients=())


def _remedy(error: Exception) -> str:
    """What to do where the host's memory is used up, which torch does not call a MemoryError."""
    if not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error):
        return ""
    return (
        ". There is no host memory left: lower model.hidden or data.batch_size, or with --full-graph give "
        "fullgraph.host_memory"
    )


class Health:
    """Whether a device can go on: the first fault, or its closing, is what every later call raises.

    Parameters
    ----------
    name
        The name of the device, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._fault: DeviceFaultError | None = None
        self.has_failed = False
        """Whether there was a fault before the device was closed."""

    def check(self) -> None:
        """Raise the fault, if there was one."""
        if self._fault is not None:
            raise self._fault

    def loaded(self, made: Made | None) -> Made:
        """What `load_model` has made; of a device that has not loaded a model, a fault of its caller."""
        if made is None:
            raise RuntimeError("no model has been loaded")
        return made

    def fail(self, doing: str, error: Exception) -> DeviceFaultError:
        """Note a fault; the first one stays."""
        self.has_failed = True
        if self._fault is None:
            self._fault = DeviceFaultError(
                f"{self._name}: {doing} failed: {type(error).__name__}: {error}{_remedy(error)}"
            )
            self._fault.__cause__ = error
        return self._fault

    @contextmanager
    def terminal(self, doing: str) -> Iterator[None]:
        """Run a call of the device: what is no error of hyrt's own in it is a fault, and terminal."""
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
        """From now on, every call is a fault."""
        self._fault = DeviceFaultError(f"{self._name}: used after close")


def check_parameters(parameters: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Refuse new weights that are not one tensor per parameter of the model, of the same shape.

    Raises
    ------
    ArgumentError
        Naming the first wrong one.
    """
    import torch

    if not isinstance(parameters, Sequence) or len(parameters) != len(shapes):
        raise ArgumentError(
            f"parameters is {show(parameters)}: give a list of {len(shapes)} tensors, one per parameter"
        )
    for number, (weight, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if not isinstance(weight, torch.Tensor) or tuple(weight.shape) != tuple(shape):
            raise ArgumentError(
                f"parameters[{number}] is {show(weight)}: give a tensor of shape {list(shape)}"
            )


@runtime_checkable
class Device(Protocol):
    """One trainer. `transfer` and `propagate` run on two threads of the trainer's, at the same time.

    `load_model`, `update` and `close` are called while both are quiet. A mini-batch that was transferred may
    never be propagated: `close` frees it too.

    What else a device can do, its class declares: see `hyrt.device.capabilities`.
    """

    info: DeviceInfo

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        """The devices of this kind that are there; cheap, never raises."""
        ...

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> Device:
        """Claim a device. Raises DeviceUnavailableError with the remedy."""
        ...

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        """Make the replica. Raises UnsupportedModelError naming layer and device."""
        ...

    def transfer(self, batch: MiniBatch) -> Any:
        """Stage a mini-batch's buffers; the host buffers stay until the step is over.

        Raises DeviceOutOfMemoryError, after which the device goes on: what it had taken for the mini-batch is
        free again. It also goes on after an ArgumentError for a mini-batch whose arrays do not go together.
        """
        ...

    def propagate(self, staged: Any) -> StepResult:
        """Forward and backward over a staged mini-batch, and release it.

        Raises DeviceFaultError, which is terminal; DeviceOutOfMemoryError is as for `transfer`. What
        `transfer` did not return is a fault.
        """
        ...

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Take new weights, in the order of `load_model`. Raises DeviceFaultError."""
        ...

    def close(self) -> None:
        """Give everything back; idempotent, valid after a fault."""
        ...
