"""What a device may be able to do beside the protocol: its class names the capabilities among its bases.

Only what a class declares is asked of its devices: a method that happens to have the same name is not a
capability.
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
    from hyrt.fullgraph.chunks.chunked_trainer import ChunkDeviceMemory
    from hyrt.fullgraph.chunks.intervals import ChunkOptions
    from hyrt.fullgraph.loops.chunked_loops import LoopMember
    from hyrt.fullgraph.matrix_pool import HostMemoryBudget
    from hyrt.fullgraph.step_checkpoint import StepCheckpointer
    from hyrt.graph.feature_cache import Rows
    from hyrt.graph.graph import Graph
    from hyrt.objective import Objective
    from hyrt.runtime.workers import RunObserver
    from hyrt.sampling.block import Ids
    from hyrt.sampling.sampler import HopSampler


class ExplainsMissing(ABC):
    """Knows why `infer_shapes` finds nothing, or less than a user may expect."""

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """One line with the reason and the remedy; empty where nothing is wrong."""


class TakesObjective(ABC):
    """Trains for other objectives than `classification`, which is what a device without this trains for."""

    @abstractmethod
    def take_objective(self, objective: Objective) -> None:
        """Train for an objective, from the next `load_model` on.

        A device that runs torch calls the objective's own code; one with kernels of its own computes the
        objectives that it has kernels for, and gives the scores of the others to
        `hyrt.objective.host_loss.compute_host_loss`, which returns their gradient.

        Raises
        ------
        UnsupportedModelError
            Naming objective and device, if it cannot train for it.
        """


class SamplesNeighbors(ABC):
    """Draws the neighbours of its own mini-batches, which `sampler.on_device` asks for."""

    @abstractmethod
    def sampler(self, graph: Graph) -> HopSampler | None:
        """A sampler over a topology that the device holds or sees; None if it cannot have this graph's.

        Called after `load_model`. What it draws equals what the host draws, bit for bit.
        """


class GathersRows(ABC):
    """Gathers feature rows itself; its `DeviceInfo.forms` has `ids`."""

    @abstractmethod
    def gathers(self, graph: Graph) -> bool:
        """Whether it will gather this graph's rows; asked once, before `load_model`.

        On True every mini-batch comes without inputs, and the device reads the rows of the first block's
        sources from the graph's feature matrix.
        """


class FeatureCacheDevice(ABC):
    """Keeps some feature rows in its memory for a whole run; its `DeviceInfo.forms` has `cached`."""

    @property
    @abstractmethod
    def free_bytes(self) -> int:
        """Bytes of its memory that nothing holds."""

    @abstractmethod
    def keep_rows(self, count: int, pieces: Iterable[Rows]) -> None:
        """Keep rows until it is closed, or `load_model` is called again; called after `load_model`.

        From then on every mini-batch's inputs are `CachedRows`, whose places refer to these rows.

        Parameters
        ----------
        count
            How many rows there are.
        pieces
            The rows in their order, [n, F] a piece; those of a narrow format all in the same one. A piece may
            be overwritten when the next is asked for.

        Raises
        ------
        DeviceOutOfMemoryError
            If they do not fit; it keeps none then, and goes on.
        UnsupportedModelError
            If it has no use for them with the model that it has loaded; it goes on.
        """


class Resizable(ABC):
    """Computes with a number of the host's threads that may change while a run goes on."""

    @abstractmethod
    def resize(self, threads: int) -> None:
        """Compute with so many threads; called between two calls of `propagate`."""


class StreamsGradients(ABC):
    """Tells of each gradient of a mini-batch as soon as it is there, while it computes others."""

    @abstractmethod
    def register_gradient_hook(self, hear: Callable[[int, torch.Tensor], None]) -> None:
        """From now on, let `hear` know in `propagate` of gradients that no edge will add to any more.

        A gradient that is told is the one of the result, and is not written any more. Those of some
        parameters, or all of a mini-batch, need not be told. Called once, after `load_model`, where ranks add
        up gradients.
        """


class ScoresVertices(ABC):
    """Computes the scores of any vertices of the graph that it trains on as a whole."""

    @abstractmethod
    def scores(self, vertices: Ids) -> NDArray[np.float32] | None:
        """[n, C] scores of [n] vertices with the weights of the last `update`, without dropout.

        Called between two calls of `propagate`, to evaluate after an epoch. None where the device cannot: its
        last mini-batch was no whole graph, or there was none.
        """


class KeepsHostBudget(ABC):
    """Keeps matrices of a whole graph in host memory, and those beyond a budget in a file."""

    @abstractmethod
    def take_host_budget(self, budget: HostMemoryBudget) -> None:
        """Keep to a budget, from the next `load_model` on.

        What is computed has the same bits, wherever a matrix lives.
        """


class RunsChunks(ABC):
    """Trains on whole graphs that are larger than its memory, a few chunks at a time."""

    @abstractmethod
    def take_chunks(self, options: ChunkOptions) -> None:
        """Train whole graphs in chunks, from the next `load_model` on.

        Without this call a device may still cut a graph that does not fit. After it, it takes mini-batches of
        a whole graph with inputs in the form `in_place`, too. What it allocates for chunks stays within
        `DeviceOptions.memory_bytes`. `hyrt.fullgraph.chunks` has the order of the work, which needs no more
        of a device than the calls of `ChunkKernels`.
        """

    @property
    @abstractmethod
    def num_chunks(self) -> int | None:
        """Into how many intervals the vertices of the last step were cut; None where it was not cut."""


class KeepsSteps(ABC):
    """Keeps what is done of a step over a whole graph, and goes on from there."""

    @abstractmethod
    def take_step_keeper(self, keeper: StepCheckpointer) -> None:
        """Hand what is done of steps to a keeper where it asks for that, from the next `load_model` on.

        `propagate` raises `hyrt.errors.StepInterrupted` where the keeper ends the step. Steps of several
        processes are not kept.
        """


class SharesColumns(ABC):
    """Computes columns of the chunks of a whole graph, of which other devices compute the others."""

    @abstractmethod
    def chunk_memory(self, in_flight: int) -> ChunkDeviceMemory:
        """Its memory for chunks, and with it what computes on them with the weights of the last `update`.

        Called after `load_model`, and again after each. Its kernels take all gradients and give the sums by
        `chunk_gradients`.

        Parameters
        ----------
        in_flight
            How many chunks it is to hold at once; 0 leaves it to the device.
        """

    @abstractmethod
    def chunk_gradients(self) -> Sequence[torch.Tensor]:
        """The gradient sums of what the kernels have computed since `begin`, on the host, in the order of the
        parameters.
        """


class SharesLoops(ABC):
    """Runs loops over edges of a whole graph, of which other devices run others.

    So a model is trained whose vertices the host computes.
    """

    @abstractmethod
    def loop_member(self, model: torch.nn.Module) -> LoopMember:
        """Its memory for loops, with its queue; or the threads of one that computes in the host's memory.

        Called after `open`, without a `load_model`, and again where another device was lost.

        Raises
        ------
        UnsupportedModelError
            If it cannot run the loops of a model.
        """


class CompositeDevice(ABC):
    """Several devices that a run takes for one."""

    @property
    @abstractmethod
    def members(self) -> Sequence[Device]:
        """The devices, in their order: what is asked of each by itself, such as its trace, they are asked."""


class Traceable(ABC):
    """Can tell what its queues run."""

    @abstractmethod
    def trace(self, hear: QueueListener) -> None:
        """From now on hand over what each queue has run, with the times of the device's own clock.

        Called once, after `load_model`, where the run is traced.
        """


class Watchable(ABC):
    """Computes with a team of `hyrt.runtime.workers.Workers`."""

    @abstractmethod
    def watch(self, watch: RunObserver) -> None:
        """Set the team's `watch`, which hears which of its threads work when.

        Called once, after `load_model`, where the run is traced.
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
    KeepsSteps,
    SharesColumns,
    SharesLoops,
    CompositeDevice,
    Traceable,
    Watchable,
)


def usable_forms(
    device: Device, graph: Graph, *, in_chunks: bool = False, sent: bool = False
) -> list[InputForm]:
    """The input forms that a device takes of a graph: `ids` is one only if it gathers the graph's rows.

    Of a whole graph that it trains `run_in_chunks` it takes `in_place`, too, and gathers no rows. Nor does it
    where rows are to be `sent` to it.
    """
    _check_device(device, graph)
    if in_chunks and isinstance(device, RunsChunks):
        return ["in_place", *(form for form in device.info.forms if form not in ("ids", "in_place"))]
    gathers = (
        isinstance(device, GathersRows) and "ids" in device.info.forms and not sent and device.gathers(graph)
    )
    return [form for form in device.info.forms if form != "ids" or gathers]


def device_sampler(device: Device, graph: Graph) -> HopSampler | None:
    """What draws neighbours on a device; None where the host does, as it does where edges have types, weights
    or features.
    """
    _check_device(device, graph)
    topology = graph.topology
    has_values = topology.edge_types is not None or topology.has_edge_values
    if has_values or not isinstance(device, SamplesNeighbors):
        return None
    return device.sampler(graph)


def _check_device(device: Any, graph: Any) -> None:
    # Graphs need numba, which `hyrt doctor` must outlive where its installation is broken.
    from hyrt.graph.graph import Graph

    if not hasattr(device, "info"):
        raise ArgumentError(f"device is {show(device)}: give an open device")
    check_type("graph", graph, Graph, "give a graph, from hyrt.load")


def missing_reason(backend: type[Device]) -> str:
    """Why a backend finds no device, in its own words where it has some."""
    check_type("backend", backend, type, "give the class of a device")
    words = " ".join(str(backend.missing()).split()) if issubclass(backend, ExplainsMissing) else ""
    return words or "none found"
