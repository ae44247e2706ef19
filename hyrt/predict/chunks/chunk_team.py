"""Devices that train a full graph in chunks, with their capacities and shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hyrt_perfmodel.chunks.chunk_costs import ChunkMachine, group_machine
from hyrt_perfmodel.chunks.chunk_schedule import ChunkSchedule, assign_columns, min_parts_for_speeds
from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch, simulate_epoch
from hyrt_perfmodel.platforms.platform import Host, PlatformTrainer

from hyrt.config import Config
from hyrt.predict.chunks.chunked_work import MAX_SIMULATED, ChunkedWork

# The driver and other processes use the rest of a device's memory.
_FREE_FRACTION = 0.9
# Enough intervals for a comparison of device speeds; a simulation of more takes longer.
_MAX_SPEED_INTERVALS = 16


def free_bytes(trainer: PlatformTrainer) -> float:
    """Return the device memory for chunks if the settings have no limit."""
    memory_gib = trainer.device.memory_gib
    return math.inf if memory_gib is None else _FREE_FRACTION * memory_gib * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedDeviceGroup:
    """One device, or several that share a graph."""

    trainers: tuple[PlatformTrainer, ...]
    host: Host
    shares: tuple[float, ...]
    """Relative shares of the columns."""
    intervals: int
    """P, the number of vertex intervals."""
    in_flight: int
    """Number of chunks on a device at once; 1 for the CPU."""
    threads: int | None = None
    """Threads of a CPU trainer among the devices; None for all."""

    @classmethod
    def from_config(
        cls,
        work: ChunkedWork,
        trainers: Sequence[PlatformTrainer],
        host: Host,
        config: Config,
        shares: Sequence[float] = (),
    ) -> PredictedDeviceGroup | None:
        """Plan the devices as a run does; None if no chunks fit, or too many are configured.

        Empty `shares` stand for the speed of each device alone.
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
        """Machine model for the simulation."""
        return group_machine(self.trainers, self.host, self.threads)

    def epoch(self, work: ChunkedWork, config: Config) -> ChunkedEpoch:
        """Simulate an epoch."""
        schedule = ChunkSchedule(
            fused=True,
            selective=True,
            filter_below=config.fullgraph.filter_below,
            order=config.fullgraph.order,
            max_resident=self.in_flight,
            # A device without a shared switch is a chain of length one.
            chain=True,
            shares=self.shares,
        )
        grid, targets = work.grids(self.intervals)
        return simulate_epoch(grid, work.layers, self.machine, schedule, targets)

    def limits(self, config: Config) -> list[float]:
        """Return, for each column, the useful fraction of rows below which its rows are filtered."""
        settings, machine = config.fullgraph, self.machine
        limits = [0.0] * self.intervals
        for device, columns in enumerate(assign_columns(self.intervals, self.shares)):
            for column in columns:
                limit = settings.filter_below
                limits[column] = machine.filter_limit(device) if limit is None else limit
        return limits if settings.order == "column-row" else [0.0] * self.intervals

    def _speeds(self, work: ChunkedWork, config: Config) -> tuple[float, ...]:
        """Return the speed of each device alone, relative to the fastest, to three digits."""
        num = min(self.intervals, _MAX_SPEED_INTERVALS)
        alone = [replace(self, trainers=(team,), shares=(1.0,), intervals=num) for team in self.trainers]
        epochs_s = [team.epoch(work, config).seconds for team in alone]
        return tuple(float(f"{min(epochs_s) / epoch_s:.3g}") for epoch_s in epochs_s)


def _num_in_flight(trainer: PlatformTrainer, in_flight: int) -> int:
    """Return the number of chunks on a device: as configured, or two if the device prefetches copies."""
    if trainer.is_host:
        return 1
    return in_flight or (1 if math.isinf(trainer.device.link_gb_s) else 2)


def _threads(trainers: Sequence[PlatformTrainer], host: Host, config: Config) -> int | None:
    """Return the threads of the CPU trainer, fewer if others use the host cores; None for all."""
    host_trainers = sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in trainers)
    total = config.runtime.train_threads or host.cores
    return None if total is None else max(1, total // max(1, host_trainers))
