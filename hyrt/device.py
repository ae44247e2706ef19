"""The device protocol: what a backend implements to be a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import MiniBatch
    from hyrt.sampling.sampler import Sampler

InputForm = Literal["rows", "sparse", "aggregated", "in_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What `probe` found.

    Parameters
    ----------
    kind, index
        Together the device's name, as in `--devices cuda:0`.
    description
        One line for people.
    memory_bytes
        Memory of the device.
    zero_copy
        Whether it reads host memory in place: then the load stage may hand it aggregated or unmoved features.
    simulated
        Whether it does not do its work on the hardware it is named after. Never chosen automatically.
    """

    kind: str
    index: int
    description: str
    memory_bytes: int
    zero_copy: bool = False
    simulated: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What a run asks of a device.

    Parameters
    ----------
    threads
        CPU threads a device that computes on the host may use.
    """

    threads: int = 1


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What a trainer computed in a step, as sums over its targets.

    Parameters
    ----------
    loss_sum
        Sum of the (weighted) losses.
    correct
        Targets whose highest score is their label.
    targets
        Number of targets.
    normalizer
        The mini-batch's share of the divisor; see `MiniBatch.normalizer`.
    gradients
        One host tensor a parameter, the gradient of `loss_sum`; empty when there were no targets.
    seconds
        Device times by stage, where the device measures its own.
    """

    loss_sum: float
    correct: int
    targets: int
    normalizer: float
    gradients: Sequence[torch.Tensor]
    seconds: Mapping[str, float] = field(default_factory=dict)


class Device(Protocol):
    """One trainer. `transfer` and `propagate` run on two threads of the trainer's, at the same time.

    `load`, `update` and `close` are called while both are quiet.
    """

    info: DeviceInfo

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        """The devices of this kind that are there; cheap, never raises."""
        ...

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> Device:
        """Claim a device. Raises DeviceUnavailable with the remedy."""
        ...

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        """Make the replica. Raises UnsupportedModel naming layer and device."""
        ...

    def sampler(self, graph: Graph) -> Sampler | None:
        """A sampler that runs on the device, where it has one."""
        ...

    def transfer(self, batch: MiniBatch) -> Any:
        """Stage a mini-batch's buffers. Raises DeviceOutOfMemory; the host buffers stay until the step is over."""
        ...

    def propagate(self, staged: Any) -> StepResult:
        """Forward and backward over a staged mini-batch, and release it. Raises DeviceFault."""
        ...

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Take new weights, in the order of `load`. Raises DeviceFault."""
        ...

    def close(self) -> None:
        """Give everything back; idempotent, valid after a fault."""
        ...
