"""From settings to the parts of a run: model, sampler, optimizer, threads, trainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from hyrt_perfmodel.assignment import Threads

from hyrt.config import Config
from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.calls import call_device, load_replica
from hyrt.device.discovery import find_device
from hyrt.device.names import split_by_shares
from hyrt.errors import ConfigError, DataError, DeviceFault, DeviceOutOfMemory, DeviceUnavailable, HyrtError
from hyrt.graph.graph import Graph
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers
from hyrt.nn.model import GNN, Architecture
from hyrt.nn.torch_threads import threads_for, use_one_torch_thread
from hyrt.pipeline.trainer import InputPlan, Trainer, plan_input
from hyrt.sampling.sampler import Sampler
from hyrt.training.expected_run import ExpectedRun

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


def assign_threads(config: Config, host_trainers: int = 1, expected: ExpectedRun | None = None) -> Threads:
    """The configured thread counts; those left at 0 are as predicted, or chosen from the available cores.

    Sampling is the lightest stage, so it gets half of them. Loading may use all: its chunks are small, and whichever
    stage is behind gets the cores. Trainers that compute on the host's cores share them.

    Parameters
    ----------
    config
        Its `runtime`.
    host_trainers
        How many trainers compute on the host's cores.
    expected
        The prediction, where there is one.
    """
    cores = available_cores()
    runtime = config.runtime
    if expected is not None:
        chosen = expected.threads
    else:
        chosen = Threads(sample=max(1, cores // 2), load=cores, train=max(1, cores // max(1, host_trainers)))
    return Threads(
        sample=runtime.sample_threads or chosen.sample,
        load=runtime.load_threads or chosen.load,
        train=runtime.train_threads or chosen.train,
    )


def evaluation_workers(threads: Threads) -> Workers:
    """The threads that evaluate and infer; close them."""
    return Workers(threads.train, "hyrt.evaluate", on_start=use_one_torch_thread)


def architecture(config: Config, graph: Graph) -> Architecture:
    """The configured model for a graph's widths."""
    model = config.model
    return Architecture(
        kind=model.kind,
        in_features=graph.num_features,
        hidden=model.hidden,
        num_classes=graph.num_classes,
        layers=model.layers,
        aggregate=model.aggregate,
        heads=model.heads,
        dropout=model.dropout,
        input_dropout=model.input_dropout,
        norm=model.norm,
        residual=model.residual,
        low_precision=config.train.precision == "bf16",
    )


def build_model(config: Config, graph: Graph) -> GNN:
    """The configured model with weights drawn from the run's seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GNN(architecture(config, graph))


def build_sampler(config: Config, graph: Graph, targets: np.ndarray) -> Sampler:
    """The configured sampler over the training targets.

    Raises
    ------
    DataError
        If there are no targets.
    """
    if not len(targets):
        raise DataError(f"{graph.name}: split {config.data.split} has no training vertices")
    return config.sampler.build(
        graph,
        targets,
        layers=config.model.layers,
        batch_size=config.data.batch_size,
        seed=config.seed,
        class_weights=config.train.build_objective().class_weights(graph.labels[targets], graph.num_classes),
    )


def build_optimizer(
    config: Config, parameters: list[torch.nn.Parameter]
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
    """The configured torch.optim optimizer and schedule.

    Raises
    ------
    ConfigError
        If there is none of that name, or its options do not fit.
    """
    train = config.train
    maker = getattr(torch.optim, train.optimizer, None)
    if not (inspect.isclass(maker) and issubclass(maker, torch.optim.Optimizer)):
        names = ", ".join(
            name
            for name, thing in vars(torch.optim).items()
            if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer) and name != "Optimizer"
        )
        raise ConfigError(f"train.optimizer={train.optimizer!r} is not in torch.optim: it has {names}")
    if maker is torch.optim.SparseAdam:
        raise ConfigError("train.optimizer='SparseAdam' takes sparse gradients only: use Adam")
    closure = inspect.signature(maker.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"train.optimizer={train.optimizer!r} evaluates the loss several times per step, which a "
            "pipeline of mini-batches cannot do: choose another, such as Adam"
        )
    options = {"lr": train.lr, **train.optimizer_options}
    if train.weight_decay:
        options["weight_decay"] = train.weight_decay
    try:
        optimizer = maker(parameters, **options)
    except Exception as error:  # Torch's own checks raise of all kinds.
        raise ConfigError(f"train.optimizer={train.optimizer!r} refuses {options}: {error}") from None
    if train.schedule is None:
        return optimizer, None
    schedule = getattr(torch.optim.lr_scheduler, train.schedule, None)
    if not (inspect.isclass(schedule) and issubclass(schedule, torch.optim.lr_scheduler.LRScheduler)):
        raise ConfigError(f"train.schedule={train.schedule!r} is not in torch.optim.lr_scheduler")
    try:
        return optimizer, schedule(optimizer, **train.schedule_options)
    except Exception as error:
        raise ConfigError(
            f"train.schedule={train.schedule!r} refuses train.schedule_options={train.schedule_options}: {error}"
        ) from None


@contextmanager
def open_trainers(
    config: Config,
    found: Sequence[Found],
    graph: Graph,
    model: torch.nn.Module,
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
    objective = config.train.build_objective()
    with ExitStack() as opened:
        for backend, info in found:
            limit = config.runtime.device_memory_gib
            options = DeviceOptions(
                threads=threads.train, memory_bytes=None if limit is None else int(limit * 2**30)
            )
            call = partial(call_device, info.name, timeout_s=config.runtime.stall_timeout_s)
            device = call("open", partial(backend.open, info, options), fault=DeviceUnavailable)
            if not hasattr(device, "info"):
                raise DeviceUnavailable(f"{info.name}: open returned {type(device).__name__}, not a device")
            trainer = Trainer(device, InputPlan("rows"), threads=threads.train)
            # Torch's own operators round differently with other counts: their threads stay.
            if threads_for(model, 2) == 1:
                trainer.resize = getattr(device, "resize", None)
            opened.enter_context(_closing(trainer, config.runtime.stall_timeout_s, warn))
            forms = [form for form in info.forms if form != "ids" or device.gathers(graph)]
            trainer.plan = plan_input(model, graph, forms, fuse=config.runtime.fuse_load)
            try:
                call("load", partial(load_replica, device, model, parameters, objective), fault=DeviceFault)
            except DeviceOutOfMemory as error:
                raise DeviceOutOfMemory(
                    f"{error}: the model's weights do not fit. Lower model.hidden, or raise "
                    "runtime.device_memory_gib if it is set"
                ) from error
            if config.sampler.draws_on_device:
                trainer.hops = device.sampler(graph)
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
                f"layer {name!r} ({type(module).__name__}) draws its mask from one generator for the whole process, so "
                "with several trainers a step would depend on the split: use hyrt.nn.operators.dropout.dropout, or one device"
            )


def first_split(config: Config, names: Sequence[str], expected: ExpectedRun | None) -> list[int]:
    """Units of a step for each trainer: as configured, by the devices' shares, as predicted, or equal parts.

    Raises
    ------
    ValueError
        If the prediction is of other trainers, or of steps of another size.
    """
    if config.split is not None:
        return list(config.split)
    if expected is not None and not config.gives_split:
        if set(expected.split) != set(names) or sum(expected.split.values()) != config.units_per_step:
            raise ValueError(
                f"the predicted split {dict(expected.split)} does not share {config.units_per_step} "
                f"units among {names}"
            )
        return [expected.split[name] for name in names]
    return split_by_shares(
        config.units_per_step,
        [1.0 if request.share is None else request.share for request in config.device_requests],
    )
