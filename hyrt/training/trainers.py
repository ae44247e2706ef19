"""The trainers of a run: devices that are found, opened, given the model, and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from hyrt_perfmodel.assignment import Threads

from hyrt.config import Config
from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.calls import call_device, load_replica, open_device
from hyrt.device.capabilities import Resizable, device_sampler, usable_forms
from hyrt.device.discovery import find_device
from hyrt.errors import ConfigError, DeviceFault, DeviceOutOfMemory, HyrtError
from hyrt.graph.graph import Graph
from hyrt.nn.torch_threads import threads_for
from hyrt.objective import Objective
from hyrt.pipeline.trainer import InputPlan, Trainer, plan_input

Found = tuple[type[Device], DeviceInfo]


def find_trainers(config: Config) -> list[Found]:
    """The backends and devices that the settings name, in their order.

    Raises
    ------
    DeviceUnavailable
        With the remedy.
    ConfigError
        If a device is named twice.
    """
    found = [find_device(request.name) for request in config.device_requests]
    names = [info.name for _, info in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"devices has {name} twice: give each device once")
    return found


@contextmanager
def open_trainers(
    config: Config,
    found: Sequence[Found],
    graph: Graph,
    model: torch.nn.Module,
    objective: Objective,
    threads: Threads,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Trainer]]:
    """Every device with a replica of the model; closed at the end of the block.

    `warn` hears of a device that fails when it is closed after all else went well.

    Raises
    ------
    DeviceUnavailable
        With the remedy.
    Stalled
        If a device does not open, or take the model, within the run's stall timeout.
    ConfigError
        If several trainers meet a layer whose result would depend on the split, or none can sample as asked.
    UnsupportedModel
        If a device cannot run the model or train for the objective.
    """
    if len(found) > 1:
        _refuse_global_dropout(model)
    trainers: list[Trainer] = []
    parameters = [p for p in model.parameters() if p.requires_grad]
    with ExitStack() as opened:
        for backend, info in found:
            limit = config.runtime.device_memory_gib
            options = DeviceOptions(
                threads=threads.train, memory_bytes=None if limit is None else int(limit * 2**30)
            )
            call = partial(call_device, info.name, timeout_s=config.runtime.stall_timeout_s)
            device = open_device(backend, info, options, config.runtime.stall_timeout_s)
            trainer = Trainer(device, InputPlan("rows"), threads=threads.train)
            # Torch's own operators round differently with other counts: their threads stay.
            if threads_for(model, 2) == 1 and isinstance(device, Resizable):
                trainer.resize = device.resize
            opened.enter_context(_closing(trainer, config.runtime.stall_timeout_s, warn))
            forms = usable_forms(device, graph)
            trainer.plan = plan_input(model, graph, forms, fuse=config.runtime.fuse_load)
            try:
                call("load", partial(load_replica, device, model, parameters, objective), fault=DeviceFault)
            except DeviceOutOfMemory as error:
                raise DeviceOutOfMemory(
                    f"{error}: the model's weights do not fit. Lower model.hidden, or raise "
                    "runtime.device_memory_gib if it is set"
                ) from error
            if config.sampler.draws_on_device:
                trainer.hops = device_sampler(device, graph)
                if trainer.hops is not None:
                    opened.callback(trainer.hops.close)
            trainers.append(trainer)
        if config.sampler.draws_on_device and all(trainer.hops is None for trainer in trainers):
            raise ConfigError(
                f"sampler.on_device: none of {', '.join(t.name for t in trainers)} can sample: set it "
                "to false"
            )
        yield trainers


@contextmanager
def _closing(trainer: Trainer, timeout_s: float, warn: Callable[[str], None]) -> Iterator[None]:
    """Close a device at the end, whatever happened; that it fails at it ends nothing."""
    device = trainer.device
    close = partial(call_device, trainer.name, "close", device.close, timeout_s=timeout_s, fault=DeviceFault)
    try:
        yield
    except BaseException as error:
        try:
            close()
        except HyrtError as second:
            # What failed first is what the user needs to read.
            error.add_note(str(second))
        raise
    try:
        close()
    except HyrtError as error:
        if trainer.lost is None:
            warn(f"{error}. The training itself is complete")
        else:
            trainer.lost.add_note(str(error))


def _refuse_global_dropout(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ConfigError(
                f"layer {name!r} ({type(module).__name__}) draws its mask from one generator for the whole "
                "process, so with several trainers a step would depend on the split: use "
                "hyrt.nn.operators.dropout.dropout, or one device"
            )
