"""Detection, opening, loading and closing of the devices that train a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from hyrt_perfmodel.policy import Threads

from hyrt.config import Config
from hyrt.config.compatibility import check_compatibility, device_component, list_features
from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.calls import call_device, load_replica, open_device
from hyrt.device.capabilities import (
    CheckpointsSteps,
    FeatureCacheDevice,
    KeepsHostBudget,
    Resizable,
    RunsChunks,
    SharesColumns,
    device_sampler,
    usable_forms,
)
from hyrt.device.discovery import find_device
from hyrt.errors import (
    ConfigError,
    DeviceFaultError,
    DeviceOutOfMemoryError,
    HyrtError,
)
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.graph.graph import Graph
from hyrt.nn.model import num_torch_threads
from hyrt.nn.model_checks import needs_loops
from hyrt.objective import Objective
from hyrt.pipeline.trainer import InputPlan, Trainer, plan_input
from hyrt.training.chunk_device_group import ChunkDeviceGroup, DeviceGroupInfo

Found = tuple[type[Device], DeviceInfo]


def find_trainers(config: Config, *, in_chunks: bool = False) -> list[Found]:
    """Return the configured devices with their backends, in order.

    Several devices that train the full graph form a `ChunkDeviceGroup`. So does a single device that computes
    chunks only in a group, if the settings or `in_chunks` request chunks. Raises DeviceUnavailableError with
    the remedy if a device is not available, ConfigError if a device is configured twice, and
    UnsupportedModelError if a device cannot train the full graph although the settings require it.
    """
    found = [find_device(request.name) for request in config.training_requests]
    names = [info.name for _, info in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"devices lists {name} twice: list each device once")
    forms_group = config.sampler.is_full_graph and (
        in_chunks or len(found) > 1 or _is_to_be_cut(config, found)
    )
    features = {name: text for name, text in list_features(config).items() if name == "full_graph"}
    if forms_group:
        others = "devices" if len(found) > 1 else "ranks"
        features["shared_full_graph"] = f"full graphs that it shares with other {others}"
    check_compatibility([device_component(*each) for each in found], features)
    return [(ChunkDeviceGroup, _team(config, found))] if forms_group else found


def _is_to_be_cut(config: Config, found: Sequence[Found]) -> bool:
    """Return whether chunks are requested on a device that needs a group for chunks, such as the CPU."""
    backend = found[0][0]
    alone = issubclass(backend, SharesColumns) and not issubclass(backend, RunsChunks)
    return config.fullgraph.uses_chunks and alone


def _team(config: Config, found: Sequence[Found]) -> DeviceGroupInfo:
    """Combine several devices into one group that trains the full graph."""
    infos = [info for _, info in found]
    return DeviceGroupInfo(
        kind="team",
        index=0,
        description="; ".join(info.description for info in infos),
        memory_bytes=min(info.memory_bytes for info in infos),
        host_cores=max(info.host_cores for info in infos),
        whole_graphs=True,
        simulated=any(info.simulated for info in infos),
        members=tuple(found),
        shares=tuple(1.0 if each.share is None else each.share for each in config.training_requests),
        continue_on_loss=config.runtime.on_device_loss == "continue",
    )


@contextmanager
def open_trainers(
    config: Config,
    found: Sequence[Found],
    graph: Graph,
    model: torch.nn.Module,
    objective: Objective,
    threads: Threads,
    warn: Callable[[str], None] = lambda text: None,
    scratch: Path | None = None,
    *,
    is_shared: bool = False,
    keeper: StepCheckpointer | None = None,
) -> Iterator[list[Trainer]]:
    """Open every device and load a replica of the model for the duration of the block.

    `warn` is called if a device cannot be closed although the block has succeeded. `scratch` is the folder
    for data beyond the host memory budget; None selects the system's temporary folder. With `is_shared`,
    other processes train the same steps, and every device that can train a full graph in chunks does so.
    `keeper` saves the completed part of full-graph steps; None saves nothing.

    Raises DeviceUnavailableError with the remedy if a device is not available, and StallError if it does not
    open or load the model within the stall timeout of the run. Raises ConfigError if a layer's result would
    depend on the split among several trainers or no device can sample as configured, and
    UnsupportedModelError if a device cannot run the model or train for the objective.
    """
    if len(found) > 1:
        refuse_global_dropout(model)
    trainers: list[Trainer] = []
    parameters = [p for p in model.parameters() if p.requires_grad]
    with ExitStack() as opened:
        for backend, info in found:
            options = DeviceOptions(threads=threads.train, memory_bytes=_device_bytes(config))
            call = partial(call_device, info.name, timeout_s=config.runtime.stall_timeout_s)
            device = open_device(backend, info, options, config.runtime.stall_timeout_s)
            trainer = Trainer(device, InputPlan("rows"), threads=threads.train)
            # torch operators round differently with another number of threads, so keep this number fixed.
            if num_torch_threads(model, 2) == 1 and isinstance(device, Resizable):
                trainer.resize = device.resize
            opened.enter_context(_closing(trainer, config.runtime.stall_timeout_s, warn))
            check_compatibility([device_component(backend, info)], list_features(config, graph))
            in_chunks = _in_chunks(config, device, is_shared=is_shared)
            _limit(trainer, config, graph, scratch, in_chunks=in_chunks)
            # On several ranks, filtering also reduces the rows that other ranks send.
            if in_chunks and not is_shared and (text := _unused_filter(config, info, model)):
                warn(text)
            if keeper is not None and config.sampler.is_full_graph and isinstance(device, CheckpointsSteps):
                device.take_step_checkpointer(keeper)
            forms = usable_forms(device, graph, in_chunks=in_chunks, sent=_keeps_rows(config, device, graph))
            whole, fuse = config.sampler.is_full_graph, config.runtime.fuse_load
            trainer.plan = plan_input(model, graph, forms, fuse=fuse, whole=whole)
            if whole and not fuse and trainer.plan == plan_input(model, graph, forms, fuse=True, whole=True):
                warn(
                    f"runtime.fuse_load=false has no effect on {info.name} with --full-graph, where "
                    "nothing is loaded: remove runtime.fuse_load"
                )
            try:
                call(
                    "load",
                    partial(load_replica, device, model, parameters, objective),
                    fault=DeviceFaultError,
                )
            except DeviceOutOfMemoryError as error:
                limit = "fullgraph.device_memory or " if config.sampler.is_full_graph else ""
                raise DeviceOutOfMemoryError(
                    f"{error}: the model's weights do not fit. Lower model.hidden, or raise {limit}"
                    "runtime.device_memory_gib if it is set"
                ) from error
            if config.sampler.draws_on_device:
                trainer.hops = device_sampler(device, graph)
                if trainer.hops is not None:
                    opened.callback(trainer.hops.close)
            trainers.append(trainer)
        if config.sampler.draws_on_device and all(trainer.hops is None for trainer in trainers):
            raise ConfigError(
                f"sampler.on_device is not supported by {' or '.join(t.name for t in trainers)}: set "
                "sampler.on_device=false"
            )
        yield trainers


def _limit(trainer: Trainer, config: Config, graph: Graph, scratch: Path | None, *, in_chunks: bool) -> None:
    """Pass the full-graph budgets to a device; raise ConfigError for more intervals than vertices."""
    limit, settings = config.fullgraph.host_memory, config.fullgraph
    if settings.chunks > graph.num_vertices:
        raise ConfigError(
            f"fullgraph.chunks={settings.chunks} is more than the {graph.num_vertices:,} vertices of "
            f"{graph.name}: set at most that number, or 0 to choose it automatically"
        )
    if isinstance(trainer.device, RunsChunks) and in_chunks:
        trainer.device.take_chunks(
            ChunkOptions(settings.chunks, settings.order, settings.in_flight, settings.filter_below)
        )
    if limit is not None:
        assert isinstance(trainer.device, KeepsHostBudget), "see device_component"
        trainer.device.take_host_budget(HostMemoryBudget(limit, scratch))


def _unused_filter(config: Config, info: DeviceInfo, model: torch.nn.Module) -> str | None:
    """Return why filtering the rows of chunks cannot save time; None if it may save time."""
    limit = config.fullgraph.filter_below
    infos = [each for _, each in info.members] if isinstance(info, DeviceGroupInfo) else [info]
    if limit is None:
        return None
    if needs_loops(model):
        return (
            f"fullgraph.filter_below={limit:g} has no effect on this model, whose edges are computed by "
            "loops: remove fullgraph.filter_below"
        )
    if limit and all(each.zero_copy for each in infos):
        return (
            f"fullgraph.filter_below={limit:g} only costs time on {info.name}, which reads the host's "
            "memory in place: remove fullgraph.filter_below"
        )
    return None


def _keeps_rows(config: Config, device: Device, graph: Graph) -> bool:
    """Return whether a device has a feature cache instead of gathering all rows itself."""
    cache_size = config.data.cache
    if cache_size is None or not isinstance(device, FeatureCacheDevice):
        return False
    return cache_size != "auto" or 2 * graph.features.nbytes > device.free_bytes


def _in_chunks(config: Config, device: Device, *, is_shared: bool) -> bool:
    """Return whether a device should train the full graph in chunks, even if the whole graph would fit."""
    settings = config.fullgraph
    is_requested = (
        settings.uses_chunks or settings.host_memory is not None or isinstance(device, ChunkDeviceGroup)
    )
    return config.sampler.is_full_graph and (is_requested or is_shared)


def _device_bytes(config: Config) -> int | None:
    """Return the limit on device memory in bytes; None if the device chooses it."""
    limit = config.runtime.device_memory_gib
    limits = [None if limit is None else int(limit * 2**30), config.fullgraph.device_memory]
    return min((each for each in limits if each is not None), default=None)


@contextmanager
def _closing(trainer: Trainer, timeout_s: float, warn: Callable[[str], None]) -> Iterator[None]:
    """Close a device at the end of the block. If this fails, the run does not fail."""
    device = trainer.device
    close = partial(
        call_device, trainer.name, "close", device.close, timeout_s=timeout_s, fault=DeviceFaultError
    )
    try:
        yield
    except BaseException as error:
        try:
            close()
        except HyrtError as second:
            # Raise the first error, which matters to the user, and attach the second error as a note.
            error.add_note(str(second))
        raise
    try:
        close()
    except HyrtError as error:
        if trainer.lost is None:
            warn(f"{error}. The training itself is complete")
        else:
            trainer.lost.add_note(str(error))


def refuse_global_dropout(model: torch.nn.Module) -> None:
    """Reject a model whose dropout masks would depend on the assignment of targets to trainers.

    Raises ConfigError, which names the layer.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ConfigError(
                f"layer {name!r} ({type(module).__name__}) draws its mask from one random generator for "
                "the whole process, so with several trainers the result would depend on the split: use "
                "hyrt.nn.operators.dropout.dropout, or one device"
            )
