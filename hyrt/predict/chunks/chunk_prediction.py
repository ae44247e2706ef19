"""Prediction of full-graph training in chunks, by simulating the schedule of copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine
from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns
from hyrt_perfmodel.platforms.platform import Platform, PlatformTrainer
from hyrt_perfmodel.platforms.platform_file import THIS_MACHINE
from hyrt_perfmodel.platforms.this_machine import full_name
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.memory import whole_graph_arrays
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR
from hyrt_perfmodel.prediction.stage_times import StepModel, host_trainers
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.errors import ConfigError, listed
from hyrt.predict.chunks.chunk_team import PredictedTeam, free_bytes
from hyrt.predict.chunks.chunked_work import MOST_SIMULATED, ChunkedWork
from hyrt.predict.chunks.host_arrays import expected_edges, host_arrays
from hyrt.predict.chunks.kept_in_file import file_bytes, file_s
from hyrt.predict.chunks.loop_prediction import predict_loops
from hyrt.predict.chunks.predicted_chunks import ChunkPrediction


def predict_chunks(platform: Platform, work: TrainingWorkload, config: Config) -> ChunkPrediction | None:
    """Simulate an epoch in chunks on the configured devices, or on a platform's first accelerator.

    The result is None if the run is not full-graph training, no device trains it in chunks, the graph fits
    the device and the settings do not request chunks, or no chunks fit.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        Settings of the work. Its devices are used if there are several, all of them the platform's.
    """
    if not config.sampler.whole_graph:
        return None
    trainers, shares = _selected_trainers(platform, work, config)
    accelerators = _accelerators(platform, work) if len(trainers) == 1 and not trainers[0].is_host else []
    if not trainers:
        return None
    if len(trainers) == 1 and not is_asked_for(platform, work, config):
        if trainers[0].is_host:
            return None  # It computes in host memory, so no copies in chunks are needed.
        budget = min(free_bytes(trainers[0]), config.fullgraph.device_memory or math.inf)
        if sum(whole_graph_arrays(work.at(float(work.batch_size)), work).values()) <= budget:
            return None
    prediction = _predict_on_trainers(platform, work, config, trainers, shares)
    if prediction is None or len(accelerators) < 2:
        return prediction
    return replace(prediction, on_all=_predict_on_trainers(platform, work, config, accelerators, ()))


def chunked_run(platform: Platform, work: TrainingWorkload, config: Config) -> ChunkPrediction | None:
    """Predict a run that trains in chunks with these settings; None if it does not.

    Parameters
    ----------
    platform
        The machine with only the run's trainers.
    work, config
        The run's work and settings.

    Raises
    ------
    ConfigError
        If such a run cannot be predicted.
    """
    if reason := why_not_in_chunks(platform, work, config):
        raise ConfigError(reason)
    prediction = predict_chunks(platform, work, config)
    if prediction is None and is_asked_for(platform, work, config):
        raise ConfigError("no chunks fit the devices: lower model.hidden, or raise fullgraph.device_memory")
    return prediction


def why_not_in_chunks(platform: Platform, work: TrainingWorkload, config: Config) -> str:
    """Return why a run in chunks cannot be predicted accurately; empty if it can, or does not train in
    chunks.

    Parameters
    ----------
    platform, work, config
        Arguments of `predict_chunks`.
    """
    trainers, _ = _selected_trainers(platform, work, config)
    if not is_asked_for(platform, work, config):
        return ""
    if config.fullgraph.chunks > MOST_SIMULATED:
        limit = f"{MOST_SIMULATED} x {MOST_SIMULATED}"
        return f"more than {limit} chunks are not simulated (fullgraph.chunks={config.fullgraph.chunks})"
    uses_loops = ChunkedWork.of(work, config, trainers[-1].device.kind) is None
    devices = [trainer.name for trainer in trainers if not trainer.is_host]
    if uses_loops and devices:
        return (
            f"model.kind={config.model.kind} trains in chunks by loops over edges, which were not measured "
            f"on {listed(devices)}: only those of the CPU are known"
        )
    full_graph_rates = platform.host.whole_graph
    unknown = uses_loops and (full_graph_rates is None or not full_graph_rates.looped or work.whole is None)
    if not uses_loops and len(devices) < len(trainers):
        # The rates of other machines are assumed.
        unknown = platform.name == THIS_MACHINE and not platform.host.chunks
    if not unknown:
        return ""
    reason = "what chunks of a whole graph take on the CPU was not measured"
    return f"{reason}: run `hyrt calibrate`" if platform.name == THIS_MACHINE else reason


def is_asked_for(platform: Platform, work: TrainingWorkload, config: Config) -> bool:
    """Return whether a run with these settings trains in chunks even if the graph fits the device.

    Parameters
    ----------
    platform, work, config
        Arguments of `predict_chunks`.
    """
    settings, (trainers, _) = config.fullgraph, _selected_trainers(platform, work, config)
    if not (config.sampler.whole_graph and trainers):
        return False
    on_host = all(trainer.is_host for trainer in trainers)
    return len(trainers) > 1 or settings.asks_for_chunks or (settings.host_memory is not None and not on_host)


def _selected_trainers(
    platform: Platform, work: TrainingWorkload, config: Config
) -> tuple[list[PlatformTrainer], list[float]]:
    """Return the configured devices with their shares if there are several, or a single default device.

    The default is the platform's first accelerator, or its CPU if there is none.
    """
    trainers, shares = named_trainers(platform, work, config)
    if len(trainers) > 1:
        return trainers, shares
    return _accelerators(platform, work)[:1] or [trainer for trainer in trainers if trainer.is_host], []


def _predict_on_trainers(
    platform: Platform,
    work: TrainingWorkload,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    shares: Sequence[float],
) -> ChunkPrediction | None:
    """Predict an epoch on some trainers; None if no chunks fit, or their cost is unknown."""
    chunked = ChunkedWork.of(work, config, trainers[-1].device.kind)
    synchronize_s = StepModel(platform, work, Terms()).synchronize_s(host_trainers(trainers))
    error = ASSUMED_ERROR if platform.relative_error is None else platform.relative_error
    if chunked is None:
        return predict_loops(platform, work, config, trainers, synchronize_s, error)
    return _simulate(platform, work, chunked, config, trainers, shares, synchronize_s, error)


def _simulate(
    platform: Platform,
    work: TrainingWorkload,
    chunked: ChunkedWork,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    shares: Sequence[float],
    synchronize_s: float,
    error: float,
) -> ChunkPrediction | None:
    settings = config.fullgraph
    team = PredictedTeam.of(chunked, trainers, platform.host, config, shares)
    if team is None:
        return None
    epoch = team.epoch(chunked, config)
    swapped = host_arrays(
        chunked.model,
        expected_edges(chunked, chunked.degrees, team.limits(config)),
        vertices=chunked.vertices,
        targets=round(chunked.targets),
        is_symmetric=chunked.is_symmetric,
        order=settings.order,
        devices=len(trainers),
    )
    swapped_bytes, (_, busy) = sum(swapped.values()), _busiest(epoch, len(trainers))
    return ChunkPrediction(
        device="+".join(trainer.name for trainer in trainers),
        intervals=team.intervals,
        vertices=math.ceil(chunked.vertices / team.intervals),
        columns=tuple(map(len, dealt_columns(team.intervals, team.shares))),
        in_flight=team.in_flight,
        epoch=epoch,
        synchronize_s=synchronize_s,
        relative_error=error,
        gather_part=1 - busy["update"] / max(sum(busy.values()), 1e-30),
        file_s=file_s(config, platform.host, work, swapped_bytes),
        swapped=swapped,
        file_bytes=file_bytes(config, swapped_bytes),
        bound=_bound(epoch, trainers, team.machine),
    )


def named_trainers(
    platform: Platform, work: TrainingWorkload, config: Config
) -> tuple[list[PlatformTrainer], list[float]]:
    """Return the configured devices, and their shares if given; empty if the platform lacks one of the
    devices.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        All settings; `devices` names the trainers.
    """
    requests = config.trained_on
    names, platform_trainers = (
        [full_name(trainer.name) for trainer in requests],
        platform.trainers(work.model),
    )
    by_name = {trainer.name: trainer for trainer in platform_trainers}
    if sorted(_kind(name) for name in names) == sorted(_kind(name) for name in by_name):
        # The platform consists of exactly these devices, renumbered in their order, host first.
        ordered = sorted(names, key=lambda name: _kind(name) != "cpu")
        by_name = {
            name: replace(trainer, name=name)
            for name, trainer in zip(ordered, platform_trainers, strict=True)
        }
    if any(name not in by_name for name in names):
        return [], []
    return [by_name[name] for name in names], [
        trainer.share for trainer in requests if trainer.share is not None
    ]


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _accelerators(platform: Platform, work: TrainingWorkload) -> list[PlatformTrainer]:
    candidates = [trainer for trainer in platform.trainers(work.model) if not trainer.is_host]
    return [trainer for trainer in candidates if trainer.device.design is None]


def _busiest(epoch: ChunkedEpoch, num: int) -> tuple[int, dict[str, float]]:
    """Return the busiest device, and its seconds of copying, gathering and products."""
    busy = [dict.fromkeys(("copy", "gather", "update"), 0.0) for _ in range(num)]
    for task in epoch.tasks:
        queue, _, device = task.queue.rpartition(" ")
        activity = next((activity for activity in ("gather", "update") if f": {activity} " in task.name), "")
        if queue.startswith("copy"):
            busy[int(device)]["copy"] += task.seconds
        elif queue == "compute" and activity:
            busy[int(device)][activity] += task.seconds
    index = max(range(num), key=lambda i: sum(busy[i].values()))
    return index, busy[index]


def _bound(epoch: ChunkedEpoch, trainers: Sequence[PlatformTrainer], machine: ChunkMachine) -> str:
    """Describe the dominating activity of the busiest device: copying or computing."""
    index, busy_s = _busiest(epoch, len(trainers))
    trainer, costs = trainers[index], machine.devices[index]
    location = f" on {trainer.name}" if len(trainers) > 1 else ""
    computing = busy_s["gather"] + busy_s["update"]
    if costs.copies_itself:
        if busy_s["copy"] > max(busy_s["gather"], busy_s["update"]):
            return f"copying rows in memory ({costs.link_bytes_per_s / 1e9:.3g} GB/s){location}"
        computing += busy_s["copy"]
    elif busy_s["copy"] > computing:
        return f"copying over its link ({trainer.device.link_gb_s:.3g} GB/s){location}"
    if busy_s["gather"] >= busy_s["update"]:
        return f"computing{location}: reading rows along edges {busy_s['gather'] / computing:.0%}"
    return f"computing{location}: products {busy_s['update'] / computing:.0%}"
