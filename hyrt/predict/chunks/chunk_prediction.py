"""What training a whole graph in chunks is predicted to take: the schedule of its copies, simulated."""

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
    """Simulate an epoch in chunks on the devices of the settings, or the first accelerator of a platform.

    None where the run is not of a whole graph, no device trains it in chunks, the whole graph fits the device
    and the settings do not ask for chunks, or no chunks fit.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        The settings of the work. Its devices count where there are several, and all are the platform's.
    """
    if not config.sampler.whole_graph:
        return None
    trainers, shares = _chosen(platform, work, config)
    several = _accelerators(platform, work) if len(trainers) == 1 and not trainers[0].is_host else []
    if not trainers:
        return None
    if len(trainers) == 1 and not is_asked_for(platform, work, config):
        if trainers[0].is_host:
            return None  # It has no memory of its own that a graph might not fit.
        budget = min(free_bytes(trainers[0]), config.fullgraph.device_memory or math.inf)
        if sum(whole_graph_arrays(work.at(float(work.batch_size)), work).values()) <= budget:
            return None
    found = _predicted(platform, work, config, trainers, shares)
    if found is None or len(several) < 2:
        return found
    return replace(found, on_all=_predicted(platform, work, config, several, ()))


def chunked_run(platform: Platform, work: TrainingWorkload, config: Config) -> ChunkPrediction | None:
    """What is predicted of a run of these settings that trains in chunks; None where it does not.

    Parameters
    ----------
    platform
        The machine with the run's trainers alone.
    work, config
        The run's work and its settings.

    Raises
    ------
    ConfigError
        If such a run cannot be predicted.
    """
    if why := why_not_in_chunks(platform, work, config):
        raise ConfigError(why)
    found = predict_chunks(platform, work, config)
    if found is None and is_asked_for(platform, work, config):
        raise ConfigError("no chunks fit the devices: lower model.hidden, or raise fullgraph.device_memory")
    return found


def why_not_in_chunks(platform: Platform, work: TrainingWorkload, config: Config) -> str:
    """Why a run that trains in chunks cannot be predicted, or not well; empty where it can, and of others.

    Parameters
    ----------
    platform, work, config
        The arguments of `predict_chunks`.
    """
    trainers, _ = _chosen(platform, work, config)
    if not is_asked_for(platform, work, config):
        return ""
    if config.fullgraph.chunks > MOST_SIMULATED:
        most = f"{MOST_SIMULATED} x {MOST_SIMULATED}"
        return f"more than {most} chunks are not simulated (fullgraph.chunks={config.fullgraph.chunks})"
    loops = ChunkedWork.of(work, config, trainers[-1].device.kind) is None
    others = [each.name for each in trainers if not each.is_host]
    if loops and others:
        return (
            f"model.kind={config.model.kind} trains in chunks by loops over edges, which were not measured "
            f"on {listed(others)}: only those of the CPU are known"
        )
    whole = platform.host.whole_graph
    unknown = loops and (whole is None or not whole.looped or work.whole is None)
    if not loops and len(others) < len(trainers):
        # Of other machines, rates are assumed.
        unknown = platform.name == THIS_MACHINE and not platform.host.chunks
    if not unknown:
        return ""
    why = "what chunks of a whole graph take on the CPU was not measured"
    return f"{why}: run `hyrt calibrate`" if platform.name == THIS_MACHINE else why


def is_asked_for(platform: Platform, work: TrainingWorkload, config: Config) -> bool:
    """Whether a run of these settings trains in chunks whether or not the graph fits.

    Parameters
    ----------
    platform, work, config
        The arguments of `predict_chunks`.
    """
    asked, (trainers, _) = config.fullgraph, _chosen(platform, work, config)
    if not (config.sampler.whole_graph and trainers):
        return False
    on_host = all(each.is_host for each in trainers)
    return len(trainers) > 1 or asked.asks_for_chunks or (asked.host_memory is not None and not on_host)


def _chosen(
    platform: Platform, work: TrainingWorkload, config: Config
) -> tuple[list[PlatformTrainer], list[float]]:
    """The devices of the settings with their shares, where there are several; or else the first accelerator
    of the platform, or the CPU of one that has none.
    """
    trainers, shares = named_trainers(platform, work, config)
    if len(trainers) > 1:
        return trainers, shares
    return _accelerators(platform, work)[:1] or [each for each in trainers if each.is_host], []


def _predicted(
    platform: Platform,
    work: TrainingWorkload,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    shares: Sequence[float],
) -> ChunkPrediction | None:
    """An epoch on some trainers; None where no chunks fit, or what they take is not known."""
    chunked = ChunkedWork.of(work, config, trainers[-1].device.kind)
    synchronize_s = StepModel(platform, work, Terms()).synchronize_s(host_trainers(trainers))
    error = ASSUMED_ERROR if platform.relative_error is None else platform.relative_error
    if chunked is None:
        return predict_loops(platform, work, config, trainers, synchronize_s, error)
    return _simulated(platform, work, chunked, config, trainers, shares, synchronize_s, error)


def _simulated(
    platform: Platform,
    work: TrainingWorkload,
    chunked: ChunkedWork,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    shares: Sequence[float],
    synchronize_s: float,
    error: float,
) -> ChunkPrediction | None:
    asked = config.fullgraph
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
        order=asked.order,
        devices=len(trainers),
    )
    kept, (_, busy) = sum(swapped.values()), _busiest(epoch, len(trainers))
    return ChunkPrediction(
        device="+".join(each.name for each in trainers),
        intervals=team.intervals,
        vertices=math.ceil(chunked.vertices / team.intervals),
        columns=tuple(map(len, dealt_columns(team.intervals, team.shares))),
        in_flight=team.in_flight,
        epoch=epoch,
        synchronize_s=synchronize_s,
        relative_error=error,
        gather_part=1 - busy["update"] / max(sum(busy.values()), 1e-30),
        file_s=file_s(config, platform.host, work, kept),
        swapped=swapped,
        file_bytes=file_bytes(config, kept),
        bound=_bound(epoch, trainers, team.machine),
    )


def named_trainers(
    platform: Platform, work: TrainingWorkload, config: Config
) -> tuple[list[PlatformTrainer], list[float]]:
    """The devices of the settings, and their shares if they are given; none where the platform lacks one.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        All settings; `devices` names the trainers.
    """
    requests = config.trained_on
    names, there = [full_name(each.name) for each in requests], platform.trainers(work.model)
    by_name = {each.name: each for each in there}
    if sorted(_kind(name) for name in names) == sorted(_kind(name) for name in by_name):
        # It has been cut down to them, and numbers them anew in their order, the host first.
        ordered = sorted(names, key=lambda name: _kind(name) != "cpu")
        by_name = {name: replace(each, name=name) for name, each in zip(ordered, there, strict=True)}
    if any(name not in by_name for name in names):
        return [], []
    return [by_name[name] for name in names], [each.share for each in requests if each.share is not None]


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _accelerators(platform: Platform, work: TrainingWorkload) -> list[PlatformTrainer]:
    there = [each for each in platform.trainers(work.model) if not each.is_host]
    return [each for each in there if each.device.design is None]


def _busiest(epoch: ChunkedEpoch, num: int) -> tuple[int, dict[str, float]]:
    """The device that is busy longest, and its seconds of copying, of gathering and of products."""
    busy = [dict.fromkeys(("copy", "gather", "update"), 0.0) for _ in range(num)]
    for task in epoch.tasks:
        queue, _, device = task.queue.rpartition(" ")
        what = next((what for what in ("gather", "update") if f": {what} " in task.name), "")
        if queue.startswith("copy"):
            busy[int(device)]["copy"] += task.seconds
        elif queue == "compute" and what:
            busy[int(device)][what] += task.seconds
    index = max(range(num), key=lambda i: sum(busy[i].values()))
    return index, busy[index]


def _bound(epoch: ChunkedEpoch, trainers: Sequence[PlatformTrainer], machine: ChunkMachine) -> str:
    """What the busiest device does most: copying or computing."""
    index, spent = _busiest(epoch, len(trainers))
    trainer, costs = trainers[index], machine.devices[index]
    on = f" on {trainer.name}" if len(trainers) > 1 else ""
    computing = spent["gather"] + spent["update"]
    if costs.copies_itself:
        if spent["copy"] > max(spent["gather"], spent["update"]):
            return f"copying rows in memory ({costs.link_bytes_per_s / 1e9:.3g} GB/s){on}"
        computing += spent["copy"]
    elif spent["copy"] > computing:
        return f"copying over its link ({trainer.device.link_gb_s:.3g} GB/s){on}"
    if spent["gather"] >= spent["update"]:
        return f"computing{on}: reading rows along edges {spent['gather'] / computing:.0%}"
    return f"computing{on}: products {spent['update'] / computing:.0%}"
