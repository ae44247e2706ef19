"""What a device may be able to do beside the protocol: its class names the capabilities among its bases.

Only what a class declares is asked of its devices: a method that happens to have the same name is not a
capability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyrt.device.protocol import Device, InputForm, QueueListener
    from hyrt.graph.graph import Graph
    from hyrt.machine.workers import Watch
    from hyrt.objective import Objective
    from hyrt.sampling.sampler import HopSampler


class ExplainsAbsence(ABC):
    """Knows why `probe` finds nothing, or less than a user may expect."""

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """One line with the reason and the remedy; empty where nothing is wrong."""


class TakesObjective(ABC):
    """Trains for other objectives than `classification`, which is what a device without this trains for."""

    @abstractmethod
    def take_objective(self, objective: Objective) -> None:
        """Train for an objective, from the next `load` on.

        A device that runs torch calls the objective's own code; one with kernels of its own computes the
        objectives that it has kernels for, and gives the scores of the others to
        `hyrt.objective.on_host.loss_on_host`, which returns their gradient.

        Raises
        ------
        UnsupportedModel
            Naming objective and device, if it cannot train for it.
        """


class SamplesNeighbors(ABC):
    """Draws the neighbours of its own mini-batches, which `sampler.on_device` asks for."""

    @abstractmethod
    def sampler(self, graph: Graph) -> HopSampler | None:
        """A sampler over a topology that the device holds or sees; None if it cannot have this graph's.

        Called after `load`. What it draws equals what the host draws, bit for bit.
        """


class GathersRows(ABC):
    """Gathers feature rows itself; its `DeviceInfo.forms` has `ids`."""

    @abstractmethod
    def gathers(self, graph: Graph) -> bool:
        """Whether it will gather this graph's rows; asked once, before `load`.

        On True every mini-batch comes without inputs, and the device reads the rows of the first block's
        sources from the graph's feature matrix.
        """


class Resizable(ABC):
    """Computes with a number of the host's threads that may change while a run goes on."""

    @abstractmethod
    def resize(self, threads: int) -> None:
        """Compute with so many threads; called between two calls of `propagate`."""


class Traceable(ABC):
    """Can tell what its queues run."""

    @abstractmethod
    def trace(self, hear: QueueListener) -> None:
        """From now on hand over what each queue has run, with the times of the device's own clock.

        Called once, after `load`, where the run is traced.
        """


class Watchable(ABC):
    """Computes with a team of `hyrt.machine.workers.Workers`."""

    @abstractmethod
    def watch(self, watch: Watch) -> None:
        """Set the team's `watch`, which hears which of its threads work when.

        Called once, after `load`, where the run is traced.
        """


CAPABILITIES: tuple[type[ABC], ...] = (
    ExplainsAbsence,
    TakesObjective,
    SamplesNeighbors,
    GathersRows,
    Resizable,
    Traceable,
    Watchable,
)


def usable_forms(device: Device, graph: Graph) -> list[InputForm]:
    """The input forms that a device takes of a graph: `ids` is one only if it gathers the graph's rows."""
    gathers = isinstance(device, GathersRows) and "ids" in device.info.forms and device.gathers(graph)
    return [form for form in device.info.forms if form != "ids" or gathers]


def device_sampler(device: Device, graph: Graph) -> HopSampler | None:
    """What draws neighbours on a device; None where the host does."""
    return device.sampler(graph) if isinstance(device, SamplesNeighbors) else None


def why_missing(backend: type[Device]) -> str:
    """Why a backend finds no device, in its own words where it has some."""
    words = " ".join(str(backend.missing()).split()) if issubclass(backend, ExplainsAbsence) else ""
    return words or "none found"
