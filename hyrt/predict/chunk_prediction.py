"""Prediction of full-graph training in chunks: device capacities and shares, and a simulated epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hyrt_perfmodel.chunk_costs import ChunkMachine, group_machine
from hyrt_perfmodel.chunk_schedule import ChunkSchedule, assign_columns, min_parts_for_speeds
from hyrt_perfmodel.chunked_epoch import ChunkedEpoch, simulate_epoch
from hyrt_perfmodel.platform import Host, Platform, PlatformTrainer, device_name
from hyrt_perfmodel.platform_file import THIS_MACHINE
from hyrt_perfmodel.policy import Threads
from hyrt_perfmodel.prediction.initial_assignment import full_graph_arrays
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR
from hyrt_perfmodel.prediction.stage_times import StepModel, host_trainers
from hyrt_perfmodel.prediction.stages import ExtraTerms, page_miss_s
from hyrt_perfmodel.task_simulation import TaskTimes
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.errors import ConfigError, join_names
from hyrt.formatting import format_bytes, format_duration
from hyrt.predict.chunked_work import MAX_SIMULATED, ChunkedWork, expected_edges, host_arrays

# Fraction of the device memory for chunks; the driver and other processes use the rest.
_FREE_FRACTION = 0.9
# This many intervals suffice to compare the speeds of devices, and more would take longer to simulate.
_MAX_SPEED_INTERVALS = 16


def free_bytes(trainer: PlatformTrainer) -> float:
    """Return the bytes of device memory for chunks if the settings do not limit it."""
    memory_gib = trainer.device.memory_gib
    return math.inf if memory_gib is None else _FREE_FRACTION * memory_gib * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedDeviceGroup:
    """One device, or several devices that share a graph."""

    trainers: tuple[PlatformTrainer, ...]
    host: Host
    shares: tuple[float, ...]
    """Relative share of the chunk columns per device."""
    intervals: int
    """Number of vertex intervals, P."""
    in_flight: int
    """Maximum number of chunks on a device at the same time; 1 for the CPU."""
    threads: int | None = None
    """Number of threads of a CPU trainer among the devices; None for all threads."""

    @classmethod
    def from_config(
        cls,
        work: ChunkedWork,
        trainers: Sequence[PlatformTrainer],
        host: Host,
        config: Config,
        shares: Sequence[float] = (),
    ) -> PredictedDeviceGroup | None:
        """Plan the devices as a run does; return None if no chunks fit or too many are configured.

        If `shares` is empty, shares are proportional to the speed of each device alone.
        """
        settings, intervals = config.fullgraph, []
        if settings.chunks > MAX_SIMULATED:
            return None
        threads = _threads(trainers, host, config)
        in_flight_counts = [_num_in_flight(trainer, settings.in_flight) for trainer in trainers]
        for trainer, in_flight in zip(trainers, in_flight_counts, strict=True):
            budget = min(free_bytes(trainer), settings.device_memory or math.inf)
            intervals.append(
                settings.chunks or work.min_intervals(budget, in_flight, is_host=trainer.is_host)
            )
        known_intervals = [num for num in intervals if num is not None]
        if len(known_intervals) < len(intervals):
            return None
        team = cls(
            trainers=tuple(trainers),
            host=host,
            shares=(1.0,) * len(intervals),
            intervals=min(max(known_intervals), work.vertices),
            in_flight=max(in_flight_counts),
            threads=threads,
        )
        if len(intervals) == 1:
            return team
        team_shares = tuple(shares) or team._speeds(work, config)
        num = settings.chunks or max(team.intervals, min_parts_for_speeds(team_shares))
        return replace(team, shares=team_shares, intervals=num)

    @property
    def machine(self) -> ChunkMachine:
        """Machine model that the simulation uses."""
        return group_machine(self.trainers, self.host, self.threads)

    def epoch(self, work: ChunkedWork, config: Config) -> ChunkedEpoch:
        """Simulate an epoch and return its times and counts."""
        schedule = ChunkSchedule(
            fused=True,
            selective=True,
            filter_below=config.fullgraph.filter_below,
            order=config.fullgraph.order,
            max_resident=self.in_flight,
            # Set this for all devices: a device without a shared switch is a chain of length one.
            chain=True,
            shares=self.shares,
        )
        grid, targets = work.grids(self.intervals)
        return simulate_epoch(grid, work.layers, self.machine, schedule, targets)

    def limits(self, config: Config) -> list[float]:
        """Return, for each chunk column, the fraction of useful rows below which the host filters rows."""
        settings, machine = config.fullgraph, self.machine
        limits = [0.0] * self.intervals
        for device, columns in enumerate(assign_columns(self.intervals, self.shares)):
            for column in columns:
                limit = settings.filter_below
                limits[column] = machine.filter_limit(device) if limit is None else limit
        return limits if settings.order == "column-row" else [0.0] * self.intervals

    def _speeds(self, work: ChunkedWork, config: Config) -> tuple[float, ...]:
        """Return the speed of each device alone, relative to the fastest and rounded to three digits."""
        num = min(self.intervals, _MAX_SPEED_INTERVALS)
        alone = [replace(self, trainers=(team,), shares=(1.0,), intervals=num) for team in self.trainers]
        epochs_s = [team.epoch(work, config).seconds for team in alone]
        return tuple(float(f"{min(epochs_s) / epoch_s:.3g}") for epoch_s in epochs_s)


def _num_in_flight(trainer: PlatformTrainer, in_flight: int) -> int:
    """Return the number of chunks on a device: the configured number, or two if the device prefetches."""
    if trainer.is_host:
        return 1
    return in_flight or (1 if math.isinf(trainer.device.link_gb_s) else 2)


def _threads(trainers: Sequence[PlatformTrainer], host: Host, config: Config) -> int | None:
    """Return the CPU trainer's threads, which are fewer if other trainers use host cores; None for all."""
    host_trainers = sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in trainers)
    total = config.runtime.train_threads or host.cores
    return None if total is None else max(1, total // max(1, host_trainers))


_GIB, _GB = 2**30, 1e9
# Passes over a matrix per step: the forward pass writes it, the backward pass reads it and overwrites it.
_PASSES = 3


def file_bytes(config: Config, matrix_bytes: float) -> float:
    """Return the bytes of the matrices that exceed `fullgraph.host_memory` and are stored in a file."""
    limit = config.fullgraph.host_memory
    return 0.0 if limit is None else max(0.0, matrix_bytes - limit)


def file_s(config: Config, host: Host, work: TrainingWorkload, matrix_bytes: float) -> float:
    """Return the disk I/O time per epoch in seconds, for the part of the file that exceeds the page cache.

    `matrix_bytes` is the size of all matrices, in memory and in the file.
    """
    limit, in_file = config.fullgraph.host_memory, file_bytes(config, matrix_bytes)
    if limit is None or host.memory_gib is None or host.file_gb_s is None:
        return 0.0
    data = [work.feature_bytes, work.graph_bytes, work.transpose_bytes]
    resident = sum(size for size in data if math.isfinite(size)) + limit
    cached = max(0.0, host.memory_gib * _GIB - resident)
    return page_miss_s(in_file, _PASSES * in_file, cached, host.file_gb_s * _GB)


def file_sentence(config: Config, host: Host, work: TrainingWorkload) -> str:
    """Describe the matrix file if the CPU trains without chunks; return "" if there is no file."""
    if config.fullgraph.host_memory is None or work.full_graph_step is None:
        return ""
    memory = math.inf if host.memory_gib is None else host.memory_gib * _GIB
    matrix_bytes = sum(work.full_graph_step(memory, host.cores or 1).matrices.values())
    in_file = file_bytes(config, matrix_bytes)
    if not in_file:
        return ""
    more_s = file_s(config, host, work, matrix_bytes)
    cost = f"the disk adds {format_duration(more_s)} per epoch" if more_s else "its pages stay in memory"
    return (
        f"{format_bytes(in_file)} of the {format_bytes(matrix_bytes)} of matrices are in a file, because "
        f"they exceed fullgraph.host_memory={format_bytes(config.fullgraph.host_memory)}; {cost}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPrediction:
    """Predicted epoch of training in chunks, on one or several devices."""

    device: str
    """Name of the device; the names of several devices are joined by `+`."""
    intervals: int
    """Number of vertex intervals, P."""
    vertices: int
    """Number of vertices per interval."""
    columns: tuple[int, ...]
    """Number of chunk columns per device."""
    in_flight: int
    """Maximum number of chunks on a device at the same time."""
    epoch: ChunkedEpoch
    synchronize_s: float
    """Time in seconds of the gradient reduction and the optimizer step."""
    relative_error: float
    gather_fraction: float
    """Fraction of the epoch in which the busiest device copies rows and gathers them along edges."""
    file_s: float = 0.0
    """Disk I/O time in seconds, for the part of the file that exceeds the page cache."""
    swapped: Mapping[str, float]
    """Size in bytes of each array on the host, by display name."""
    file_bytes: float
    """Part of the arrays in `swapped` that must be stored in a file, in bytes."""
    bound: str
    """Description of the bottleneck for users."""
    on_all_devices: ChunkPrediction | None = None
    """Prediction for all accelerators of the platform together, if there are several."""

    @property
    def epoch_s(self) -> float:
        """Predicted time per epoch in seconds."""
        return self.epoch.seconds + self.file_s + self.synchronize_s

    @property
    def num_reads(self) -> int:
        """Number of chunks for which rows of an interval are copied."""
        return sum(task.queue.startswith("copy in") and ": rows " in task.name for task in self.epoch.tasks)

    @property
    def num_filtered(self) -> int:
        """Number of chunks in `num_reads` for which the host filters rows."""
        return sum(task.queue.startswith("filter") for task in self.epoch.tasks)

    @property
    def num_forwarded(self) -> int:
        """Number of chunks whose rows are forwarded by the previous device under the same switch."""
        return sum("passed on" in task.name for task in self.epoch.tasks)

    def to_json(self) -> dict[str, Any]:
        """Return the values that `hyrt predict --json` prints."""
        return {
            "device": self.device,
            "intervals": self.intervals,
            "vertices": self.vertices,
            "columns": list(self.columns),
            "reads": self.num_reads,
            "filtered": self.num_filtered,
            "handed": self.num_forwarded,
            "in_flight": self.in_flight,
            "epoch_s": self.epoch_s,
            "relative_error": self.relative_error,
            "synchronize_s": self.synchronize_s,
            "copy_s": self.epoch.copy_s,
            "compute_s": self.epoch.compute_s,
            "hidden": self.epoch.hidden_fraction,
            "swapped_bytes": {name: round(num_bytes) for name, num_bytes in self.swapped.items()},
            "file_bytes": round(self.file_bytes),
            "file_s": self.file_s,
            "bound": self.bound,
            "on_all": None if self.on_all_devices is None else self.on_all_devices.to_json(),
        }

    def lines(self) -> list[str]:
        """Return the lines that `hyrt predict` prints."""
        epoch, num = self.epoch, self.intervals
        low, high = (self.epoch_s * (1 + sign * self.relative_error) for sign in (-1, 1))
        copied = "reads host memory in place"
        if epoch.copy_s and self.device.startswith("cpu:") and len(self.columns) == 1:
            copied = f"copying sums and results in memory {format_duration(epoch.copy_s)}"
        elif epoch.copy_s:
            copied = f"copying {format_duration(epoch.copy_s)}, {epoch.hidden_fraction:.0%} of it hidden"
        columns = ""
        if len(self.columns) > 1:
            columns = f" · {', '.join(map(str, self.columns))} columns each"
        handed = (
            f" · rows of {self.num_forwarded:,} chunks forwarded under a switch" if self.num_forwarded else ""
        )
        filtered = (
            f" · rows filtered for {self.num_filtered:,} of {self.num_reads:,} chunks"
            if self.num_filtered
            else ""
        )
        in_file = f", {format_bytes(self.file_bytes)} of it in a file" if self.file_bytes else ""
        if self.file_s:
            in_file += f", for which the disk takes {format_duration(self.file_s)} per epoch"
        width = max(map(len, self.swapped), default=0)
        return [
            f"in chunks on {self.device}: epoch {format_duration(self.epoch_s)} ({format_duration(low)} to "
            f"{format_duration(high)}) · {num} x {num} chunks of "
            f"{self.vertices:,} vertices, {self.in_flight} in flight{columns} · {copied}{filtered}{handed} · "
            f"computing {format_duration(epoch.compute_s)} ◀ bound by {self.bound}",
            f"swapped to the host: {format_bytes(sum(self.swapped.values()))}{in_file}:",
            *(f"  {name:{width}} {format_bytes(num_bytes):>9}" for name, num_bytes in self.swapped.items()),
            *([] if self.on_all_devices is None else self.on_all_devices.lines()[:1]),
        ]


def predict_loops(
    platform: Platform,
    work: TrainingWorkload,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    synchronize_s: float,
    relative_error: float,
) -> ChunkPrediction | None:
    """Predict an epoch on the CPU; return None for other devices, or if the loops were not measured.

    Loops read the rows of an interval in place, so nothing is copied for any number of intervals.
    """
    if not all(trainer.is_host for trainer in trainers) or work.full_graph_step is None:
        return None
    [trainer] = trainers
    count = config.runtime.train_threads or platform.host.cores or 1
    threads = Threads(sample=1, load=1, train=count)
    step = work.at(float(work.batch_size))
    step_times = StepModel(platform, work, ExtraTerms()).full_graph_s(trainer, step, threads, with_loops=True)
    if step_times is None:
        return None
    gather_s, rest_s = step_times
    vertices = round(step.vertices[0])
    num = max(1, min(config.fullgraph.chunks, vertices))
    memory_gib = platform.host.memory_gib
    swapped = work.full_graph_step(math.inf if memory_gib is None else memory_gib * _GIB, count).matrices
    seconds = gather_s + rest_s
    dominating = ("reading rows along edges", gather_s) if gather_s >= rest_s else ("products", rest_s)
    return ChunkPrediction(
        device=trainer.name,
        intervals=num,
        vertices=math.ceil(vertices / num),
        columns=(num,),
        in_flight=1,
        epoch=ChunkedEpoch(
            seconds=seconds,
            copy_s=0.0,
            compute_s=seconds,
            hidden_fraction=1.0,
            tasks=(),
            times=TaskTimes((), ()),
        ),
        synchronize_s=synchronize_s,
        relative_error=relative_error,
        gather_fraction=gather_s / seconds,
        file_s=file_s(config, platform.host, work, sum(swapped.values())),
        swapped=swapped,
        file_bytes=file_bytes(config, sum(swapped.values())),
        bound=f"computing: {dominating[0]} {dominating[1] / seconds:.0%}",
    )


def predict_chunks(platform: Platform, work: TrainingWorkload, config: Config) -> ChunkPrediction | None:
    """Simulate an epoch in chunks on the configured devices, or on the platform's first accelerator.

    The configured devices are used if there are several, all of which the platform has. Returns None unless
    the run trains a full graph on a device, chunks are necessary or requested, and they fit.
    """
    if not config.sampler.is_full_graph:
        return None
    trainers, shares = _selected_trainers(platform, work, config)
    accelerators = _accelerators(platform, work) if len(trainers) == 1 and not trainers[0].is_host else []
    if not trainers:
        return None
    if len(trainers) == 1 and not trains_in_chunks(platform, work, config):
        if trainers[0].is_host:
            return None  # The device computes in host memory, so no chunks have to be copied.
        budget = min(free_bytes(trainers[0]), config.fullgraph.device_memory or math.inf)
        if sum(full_graph_arrays(work.at(float(work.batch_size)), work).values()) <= budget:
            return None
    prediction = _predict_on_trainers(platform, work, config, trainers, shares)
    if prediction is None or len(accelerators) < 2:
        return prediction
    return replace(prediction, on_all_devices=_predict_on_trainers(platform, work, config, accelerators, ()))


def predict_chunked_run(platform: Platform, work: TrainingWorkload, config: Config) -> ChunkPrediction | None:
    """Predict a run with these settings; return None if it does not train in chunks.

    `platform` contains only the run's trainers. Raises ConfigError if such a run cannot be predicted.
    """
    if reason := chunk_prediction_gap(platform, work, config):
        raise ConfigError(reason)
    prediction = predict_chunks(platform, work, config)
    if prediction is None and trains_in_chunks(platform, work, config):
        raise ConfigError(
            "even the smallest chunks do not fit in device memory: lower model.hidden, or raise "
            "fullgraph.device_memory"
        )
    return prediction


def chunk_prediction_gap(platform: Platform, work: TrainingWorkload, config: Config) -> str:
    """Return the reason why a run in chunks cannot be predicted accurately, or ""."""
    trainers, _ = _selected_trainers(platform, work, config)
    if not trains_in_chunks(platform, work, config):
        return ""
    if config.fullgraph.chunks > MAX_SIMULATED:
        limit = f"{MAX_SIMULATED} x {MAX_SIMULATED}"
        return f"more than {limit} chunks are not simulated (fullgraph.chunks={config.fullgraph.chunks})"
    uses_loops = ChunkedWork.from_config(work, config, trainers[-1].device.kind) is None
    devices = [trainer.name for trainer in trainers if not trainer.is_host]
    if uses_loops and devices:
        return (
            f"model.kind={config.model.kind} trains in chunks by loops over edges, which were measured "
            f"only on the CPU, not on {join_names(devices)}"
        )
    full_graph_rates = platform.host.whole_graph
    unknown = uses_loops and (
        full_graph_rates is None or not full_graph_rates.looped or work.full_graph_step is None
    )
    if not uses_loops and len(devices) < len(trainers):
        # Only this machine is measured; rates of other machines are assumed.
        unknown = platform.name == THIS_MACHINE and not platform.host.chunks
    if not unknown:
        return ""
    reason = "the cost of full-graph chunks on the CPU was not measured"
    return f"{reason}: run `hyrt calibrate`" if platform.name == THIS_MACHINE else reason


def trains_in_chunks(platform: Platform, work: TrainingWorkload, config: Config) -> bool:
    """Return whether a run with these settings trains in chunks even if the graph fits the device."""
    settings, (trainers, _) = config.fullgraph, _selected_trainers(platform, work, config)
    if not (config.sampler.is_full_graph and trainers):
        return False
    on_host = all(trainer.is_host for trainer in trainers)
    return len(trainers) > 1 or settings.uses_chunks or (settings.host_memory is not None and not on_host)


def _selected_trainers(
    platform: Platform, work: TrainingWorkload, config: Config
) -> tuple[list[PlatformTrainer], list[float]]:
    """Return the configured devices and shares if there are several devices, or else one default device.

    The default is the platform's first accelerator, or its CPU if it has no accelerators.
    """
    trainers, shares = configured_trainers(platform, work, config)
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
    """Predict an epoch on the given trainers; return None if no chunks fit or the cost is unknown."""
    chunked = ChunkedWork.from_config(work, config, trainers[-1].device.kind)
    synchronize_s = StepModel(platform, work, ExtraTerms()).synchronize_s(host_trainers(trainers))
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
    team = PredictedDeviceGroup.from_config(chunked, trainers, platform.host, config, shares)
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
        columns=tuple(map(len, assign_columns(team.intervals, team.shares))),
        in_flight=team.in_flight,
        epoch=epoch,
        synchronize_s=synchronize_s,
        relative_error=error,
        gather_fraction=1 - busy["update"] / max(sum(busy.values()), 1e-30),
        file_s=file_s(config, platform.host, work, swapped_bytes),
        swapped=swapped,
        file_bytes=file_bytes(config, swapped_bytes),
        bound=_bound(epoch, trainers, team.machine),
    )


def configured_trainers(
    platform: Platform, work: TrainingWorkload, config: Config
) -> tuple[list[PlatformTrainer], list[float]]:
    """Return the configured devices and shares; both are empty if the platform lacks a device."""
    requests = config.training_requests
    names, platform_trainers = (
        [device_name(trainer.name) for trainer in requests],
        platform.trainers(work.model),
    )
    by_name = {trainer.name: trainer for trainer in platform_trainers}
    if sorted(_kind(name) for name in names) == sorted(_kind(name) for name in by_name):
        # The platform contains exactly these devices, with the host first and the others in order.
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
    """Return the index of the busiest device, and its times of copies, gathers and products in seconds."""
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
    """Describe whether copies or computation dominate on the busiest device."""
    index, busy_s = _busiest(epoch, len(trainers))
    trainer, costs = trainers[index], machine.devices[index]
    location = f" on {trainer.name}" if len(trainers) > 1 else ""
    computing = busy_s["gather"] + busy_s["update"]
    if costs.compute_copies:
        if busy_s["copy"] > max(busy_s["gather"], busy_s["update"]):
            return f"copying rows in memory ({costs.link_bytes_per_s / 1e9:.3g} GB/s){location}"
        computing += busy_s["copy"]
    elif busy_s["copy"] > computing:
        return f"copying over its link ({trainer.device.link_gb_s:.3g} GB/s){location}"
    if busy_s["gather"] >= busy_s["update"]:
        return f"computing{location}: reading rows along edges {busy_s['gather'] / computing:.0%}"
    return f"computing{location}: products {busy_s['update'] / computing:.0%}"
