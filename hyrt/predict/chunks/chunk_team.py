"""The devices that a whole graph is predicted on in chunks: what they have room for, and their shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine, team_machine
from hyrt_perfmodel.chunks.chunk_schedule import ChunkSchedule
from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch, simulate_epoch
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns, least_parts
from hyrt_perfmodel.platforms.platform import Host, PlatformTrainer

from hyrt.config import Config
from hyrt.predict.chunks.chunked_work import MOST_SIMULATED, ChunkedWork

_GIB = 2**30
# Of a device's memory, what its driver and others leave.
_FREE = 0.9
# As many tell how fast devices are beside each other, and more take longer to simulate.
_ENOUGH_INTERVALS = 16


def free_bytes(trainer: PlatformTrainer) -> float:
    """Memory that chunks may take, without a limit of the settings."""
    memory_gib = trainer.device.memory_gib
    return math.inf if memory_gib is None else _FREE * memory_gib * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTeam:
    """One device, or several that share a graph."""

    trainers: tuple[PlatformTrainer, ...]
    host: Host
    shares: tuple[float, ...]
    """How columns are dealt out."""
    intervals: int
    """P."""
    in_flight: int
    """Chunks on a device at once; the CPU has one."""
    threads: int | None = None
    """Threads of the CPU's trainer, where that is one of them; None for all."""

    @classmethod
    def of(
        cls,
        work: ChunkedWork,
        trainers: Sequence[PlatformTrainer],
        host: Host,
        config: Config,
        shares: Sequence[float] = (),
    ) -> PredictedTeam | None:
        """What a run takes; None where no chunks fit, or more are asked for than are simulated.

        Parameters
        ----------
        work, config
            The run's.
        trainers, host
            The devices, and the host that they belong to.
        shares
            How columns are dealt out; by how fast each device would train alone if empty.
        """
        asked, nums = config.fullgraph, []
        if asked.chunks > MOST_SIMULATED:
            return None
        threads = _threads(trainers, host, config)
        held = [_held(each, asked.in_flight) for each in trainers]
        for each, in_flight in zip(trainers, held, strict=True):
            budget = min(free_bytes(each), asked.device_memory or math.inf)
            nums.append(asked.chunks or work.least_intervals(budget, in_flight, is_host=each.is_host))
        found = [num for num in nums if num is not None]
        if len(found) < len(nums):
            return None
        team = cls(
            trainers=tuple(trainers),
            host=host,
            shares=(1.0,) * len(nums),
            intervals=min(max(found), work.vertices),
            in_flight=max(held),
            threads=threads,
        )
        if len(nums) == 1:
            return team
        given = tuple(shares) or team._speeds(work, config)
        num = asked.chunks or max(team.intervals, least_parts(given))
        return replace(team, shares=given, intervals=num)

    @property
    def machine(self) -> ChunkMachine:
        """The devices as the simulation takes them."""
        return team_machine(self.trainers, self.host, self.threads)

    def epoch(self, work: ChunkedWork, config: Config) -> ChunkedEpoch:
        """The simulated epoch."""
        schedule = ChunkSchedule(
            fused=True,
            selective=True,
            filter_below=config.fullgraph.filter_below,
            order=config.fullgraph.order,
            room=self.in_flight,
            # Where no devices share a switch, each is a chain of its own.
            chain=True,
            shares=self.shares,
        )
        grid, targets = work.grids(self.intervals)
        return simulate_epoch(grid, work.layers, self.machine, schedule, targets)

    def limits(self, config: Config) -> list[float]:
        """Of each column, the useful fraction of rows below which they are filtered for it."""
        asked, machine = config.fullgraph, self.machine
        found = [0.0] * self.intervals
        for device, columns in enumerate(dealt_columns(self.intervals, self.shares)):
            for column in columns:
                limit = asked.filter_below
                found[column] = machine.filter_limit(device) if limit is None else limit
        return found if asked.order == "column-row" else [0.0] * self.intervals

    def _speeds(self, work: ChunkedWork, config: Config) -> tuple[float, ...]:
        """How fast each device would train alone, beside the fastest, to three digits."""
        num = min(self.intervals, _ENOUGH_INTERVALS)
        alone = [replace(self, trainers=(each,), shares=(1.0,), intervals=num) for each in self.trainers]
        epochs_s = [each.epoch(work, config).seconds for each in alone]
        return tuple(float(f"{min(epochs_s) / epoch_s:.3g}") for epoch_s in epochs_s)


def _held(trainer: PlatformTrainer, in_flight: int) -> int:
    """Chunks that a device holds at once: as many as are asked for, or else two where it copies ahead."""
    if trainer.is_host:
        return 1
    return in_flight or (1 if math.isinf(trainer.device.link_gb_s) else 2)


def _threads(trainers: Sequence[PlatformTrainer], host: Host, config: Config) -> int | None:
    """Threads of the CPU's trainer: those that compute on the host's cores share them; None for all."""
    here = sum(each.is_host or each.device.host_cores > 0 for each in trainers)
    total = config.runtime.train_threads or host.cores
    return None if total is None else max(1, total // max(1, here))
