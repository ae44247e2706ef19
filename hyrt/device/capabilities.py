"""Optional device capabilities, which a backend class declares as base classes.

A capability is used only if it is declared: a method that happens to have the same name does not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from hyrt.checks import check_type, show
from hyrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from hyrt.device.protocol import Device, InputForm, QueueListener
    from hyrt.fullgraph.chunked_loops import LoopMember
    from hyrt.fullgraph.chunked_trainer import ChunkDeviceMemory
    from hyrt.fullgraph.intervals import ChunkOptions
    from hyrt.fullgraph.matrix_pool import HostMemoryBudget
    from hyrt.fullgraph.step_checkpoint import StepCheckpointer
    from hyrt.graph.feature_cache import Rows
    from hyrt.graph.graph import Graph
    from hyrt.objective import Objective
    from hyrt.runtime.workers import RunObserver
    from hyrt.sampling.block import Ids
    from hyrt.sampling.sampler import HopSampler


class ExplainsMissing(ABC):
    """Capability to explain why `probe` finds no device, or fewer devices than a user may expect."""

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """Return one line with the reason and the remedy, or an empty string if no device is missing."""


class TakesObjective(ABC):
    """Capability to train for objectives other than `classification`, which every device supports."""

    @abstractmethod
    def take_objective(self, objective: Objective) -> None:
        """Train for an objective, starting with the next `load`.

        A device that runs torch calls the objective's code. A device with custom kernels computes the
        objectives for which it has kernels. For any other objective, it passes the scores to
        `hyrt.objective.host_loss.compute_host_loss`, which returns their gradient.

        Raises
        ------
        UnsupportedModelError
            If the device cannot train for the objective; the message names both.
        """


class SamplesNeighbors(ABC):
    """Capability to sample neighbours on the device, enabled by `sampler.on_device`."""

    @abstractmethod
    def sampler(self, graph: Graph) -> HopSampler | None:
        """Return a sampler over a topology that the device can read, or None if it cannot read this graph.

        Called after `load`. The sampled neighbours equal the host sampler's neighbours, bit for bit.
        """


class GathersRows(ABC):
    """Capability to gather features on the device. `DeviceInfo.forms` must contain `ids`."""

    @abstractmethod
    def gathers(self, graph: Graph) -> bool:
        """Return whether the device gathers this graph's feature rows. Called once, before `load`.

        If True, every mini-batch is passed without inputs, and the device reads the rows of the first block's
        sources from the graph's feature matrix.
        """


class FeatureCacheDevice(ABC):
    """Capability to cache features in device memory for a run. `DeviceInfo.forms` must contain `cached`."""

    @property
    @abstractmethod
    def free_bytes(self) -> int:
        """Return the number of free bytes of device memory."""

    @abstractmethod
    def keep_rows(self, count: int, pieces: Iterable[Rows]) -> None:
        """Cache rows until the device is closed or `load` is called again. Called after `load`.

        Afterwards, the inputs of every mini-batch are `CachedRows` whose positions refer to these rows.

        Parameters
        ----------
        count
            Number of rows.
        pieces
            Rows in order, in arrays of [n, F]. If they are quantized, all have the same format. An array may
            be overwritten when the next one is requested.

        Raises
        ------
        DeviceOutOfMemoryError
            If the rows do not fit; the device then caches no rows and stays usable.
        UnsupportedModelError
            If the loaded model cannot use cached rows; the device stays usable.
        """


class Resizable(ABC):
    """Capability to change the number of host threads that compute during a run."""

    @abstractmethod
    def resize(self, threads: int) -> None:
        """Set the number of compute threads. Called between two calls of `propagate`."""


class StreamsGradients(ABC):
    """Capability to report each gradient as soon as it is complete, while others are still being computed."""

    @abstractmethod
    def register_gradient_hook(self, hook: Callable[[int, torch.Tensor], None]) -> None:
        """Register a hook that `propagate` calls with the index and value of each complete gradient.

        A reported gradient is final: it equals the gradient in the result and is not written again. The
        device may skip some parameters, or a whole mini-batch. This method is called once, after `load`, if
        ranks all-reduce gradients.
        """


class ScoresVertices(ABC):
    """Capability to score arbitrary vertices of the full graph on which the device trains."""

    @abstractmethod
    def scores(self, vertices: Ids) -> NDArray[np.float32] | None:
        """Return the [n, C] scores of [n] vertices under the last `update`'s weights, without dropout.

        Called between two calls of `propagate`, for the evaluation after an epoch. Returns None if there was
        no mini-batch yet, or the last mini-batch was not a full graph.
        """


class KeepsHostBudget(ABC):
    """Capability to store full-graph matrices in host memory up to a budget, and the rest in a file."""

    @abstractmethod
    def take_host_budget(self, budget: HostMemoryBudget) -> None:
        """Set the host memory budget, which applies from the next `load`.

        Results are bitwise equal wherever a matrix is stored.
        """


class RunsChunks(ABC):
    """Capability to train on full graphs larger than the device memory, a few chunks at a time."""

    @abstractmethod
    def take_chunks(self, options: ChunkOptions) -> None:
        """Train full graphs in chunks from the next `load`.

        Even without this call, a device may divide a graph that does not fit. After this call, the device
        also accepts full-graph mini-batches with `in_place` inputs, and its chunks use at most
        `DeviceOptions.memory_bytes`. `hyrt.fullgraph` schedules the work; a device only has to implement
        `ChunkKernels`.
        """

    @property
    @abstractmethod
    def num_chunks(self) -> int | None:
        """Return the number of vertex intervals in the last step, or None if the step was not divided."""


class CheckpointsSteps(ABC):
    """Capability to save checkpoints within a full-graph step, from which the step can resume."""

    @abstractmethod
    def take_step_checkpointer(self, keeper: StepCheckpointer) -> None:
        """Set the step checkpointer, which is used from the next `load`.

        The device saves the completed part of a step when the checkpointer requests it. `propagate` raises
        `hyrt.errors.StepInterrupted` if the checkpointer ends the step. Steps that several processes share
        are not saved.
        """


class SharesColumns(ABC):
    """Capability to compute some columns of a full graph's chunks, while other devices compute the rest."""

    @abstractmethod
    def chunk_memory(self, in_flight: int) -> ChunkDeviceMemory:
        """Return the device's chunk memory, with kernels that use the weights of the last `update`.

        Called after each `load`. The kernels compute all gradients; `chunk_gradients` returns the sums.

        Parameters
        ----------
        in_flight
            Number of chunks to hold at once; 0 lets the device choose.
        """

    @abstractmethod
    def chunk_gradients(self) -> Sequence[torch.Tensor]:
        """Return the gradient sums since `begin_step`, as host tensors in the order of the parameters."""


class SharesLoops(ABC):
    """Capability to run some of the loops over a full graph's edges, while other devices run the rest.

    Used for models whose vertex operations run on the host.
    """

    @abstractmethod
    def loop_member(self, model: torch.nn.Module) -> LoopMember:
        """Return the memory and queue for the device's loops, or its threads if it computes in host memory.

        Called after `open`, without a `load`, and again if another device was lost.

        Raises
        ------
        UnsupportedModelError
            If the device cannot run the loops of a model.
        """


class CompositeDevice(ABC):
    """Group of several devices that a run uses as one device."""

    @property
    @abstractmethod
    def members(self) -> Sequence[Device]:
        """Return the member devices in order. Per-device requests, such as tracing, go to each member."""


class Traceable(ABC):
    """Capability to trace the operations that the device's queues execute."""

    @abstractmethod
    def trace(self, listener: QueueListener) -> None:
        """Pass the operations that queues execute from now on to `listener`, with device clock times.

        Called once, after `load`, if the run is traced.
        """


class Observable(ABC):
    """Capability to compute with a thread team (`hyrt.runtime.workers.Workers`) that can be observed."""

    @abstractmethod
    def watch(self, watch: RunObserver) -> None:
        """Set the team's observer, which is notified of each thread's work.

        Called once, after `load`, if the run is traced.
        """


CAPABILITIES: tuple[type[ABC], ...] = (
    ExplainsMissing,
    TakesObjective,
    SamplesNeighbors,
    GathersRows,
    FeatureCacheDevice,
    Resizable,
    StreamsGradients,
    ScoresVertices,
    KeepsHostBudget,
    RunsChunks,
    CheckpointsSteps,
    SharesColumns,
    SharesLoops,
    CompositeDevice,
    Traceable,
    Observable,
)


def usable_forms(
    device: Device, graph: Graph, *, in_chunks: bool = False, sent: bool = False
) -> list[InputForm]:
    """Return the input forms that a device accepts for a graph.

    `ids` is included only if the device gathers the graph's rows, which it does not do if it trains a full
    graph `in_chunks` or if rows are `sent` to it. With `in_chunks`, `in_place` is included too.
    """
    _check_device(device, graph)
    if in_chunks and isinstance(device, RunsChunks):
        return ["in_place", *(form for form in device.info.forms if form not in ("ids", "in_place"))]
    gathers = (
        isinstance(device, GathersRows) and "ids" in device.info.forms and not sent and device.gathers(graph)
    )
    return [form for form in device.info.forms if form != "ids" or gathers]


def device_sampler(device: Device, graph: Graph) -> HopSampler | None:
    """Return the device's neighbour sampler, or None if the host samples.

    The host samples if edges have types, weights or features.
    """
    _check_device(device, graph)
    topology = graph.topology
    has_values = topology.edge_types is not None or topology.has_edge_values
    if has_values or not isinstance(device, SamplesNeighbors):
        return None
    return device.sampler(graph)


def _check_device(device: Any, graph: Any) -> None:
    # Import lazily: graphs need numba, and `hyrt doctor` must work even if numba is broken.
    from hyrt.graph.graph import Graph

    if not hasattr(device, "info"):
        raise ArgumentError(f"device is {show(device)}: pass an open device")
    check_type("graph", graph, Graph, "pass a graph from hyrt.load")


def missing_reason(backend: type[Device]) -> str:
    """Return the reason why a backend finds no device: the backend's explanation if it has one."""
    check_type("backend", backend, type, "pass a device class")
    words = " ".join(str(backend.missing()).split()) if issubclass(backend, ExplainsMissing) else ""
    return words or "no device was found"
