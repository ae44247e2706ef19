"""What training a whole graph in chunks is predicted to take: the schedule of its copies, simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns
from hyrt_perfmodel.platforms.platform import Platform, PlatformTrainer
from hyrt_perfmodel.platforms.this_machine import full_name
from hyrt_perfmodel.prediction.memory import whole_graph_arrays
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.predict.chunks.chunk_team import PredictedTeam, free_bytes
from hyrt.predict.chunks.chunked_work import ChunkedWork
from hyrt.predict.chunks.host_arrays import expected_edges, host_arrays
from hyrt.quantities import duration, size


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPrediction:
    """An epoch in chunks on one device, or on several."""

    device: str
    """Its name; those of several with a plus between them."""
    intervals: int
    """P: into how many intervals the vertices are cut."""
    vertices: int
    """Vertices of an interval."""
    columns: tuple[int, ...]
    """Columns of chunks that each device computes."""
    in_flight: int
    """Chunks that are on the device at once."""
    epoch: ChunkedEpoch
    """The simulated epoch."""
    swapped: Mapping[str, float]
    """Bytes of each array that stays on the host, by a name for people."""
    file_bytes: float
    """Of them, what has to live in a file."""
    bound: str
    """What bounds the epoch, in words."""
    on_all: ChunkPrediction | None = None
    """On all accelerators of the platform that share the graph, where there are several."""

    @property
    def reads(self) -> int:
        """For how many chunks rows of an interval are copied."""
        return sum(task.queue.startswith("copy in") and ": rows " in task.name for task in self.epoch.tasks)

    @property
    def filtered(self) -> int:
        """For how many of them the host filters the rows."""
        return sum(task.queue.startswith("filter") for task in self.epoch.tasks)

    @property
    def handed(self) -> int:
        """For how many chunks a device gets rows from the one before it, under their switch."""
        return sum("passed on" in task.name for task in self.epoch.tasks)

    def to_json(self) -> dict[str, Any]:
        """As `hyrt predict --json` prints it."""
        return {
            "device": self.device,
            "intervals": self.intervals,
            "vertices": self.vertices,
            "columns": list(self.columns),
            "reads": self.reads,
            "filtered": self.filtered,
            "handed": self.handed,
            "in_flight": self.in_flight,
            "epoch_s": self.epoch.seconds,
            "copy_s": self.epoch.copy_s,
            "compute_s": self.epoch.compute_s,
            "hidden": self.epoch.hidden,
            "swapped_bytes": {name: round(num_bytes) for name, num_bytes in self.swapped.items()},
            "file_bytes": round(self.file_bytes),
            "bound": self.bound,
            "on_all": None if self.on_all is None else self.on_all.to_json(),
        }

    def lines(self) -> list[str]:
        """As `hyrt predict` prints it."""
        epoch, num = self.epoch, self.intervals
        copied = "reads host memory in place"
        if epoch.copy_s:
            copied = f"copying {duration(epoch.copy_s)}, {epoch.hidden:.0%} of it hidden"
        dealt = ""
        if len(self.columns) > 1:
            dealt = f" · {', '.join(map(str, self.columns))} columns each"
        handed = f" · rows of {self.handed:,} chunks handed on under a switch" if self.handed else ""
        filtered = f" · rows filtered for {self.filtered:,} of {self.reads:,} chunks" if self.filtered else ""
        in_file = f", {size(self.file_bytes)} of it in a file" if self.file_bytes else ""
        width = max(map(len, self.swapped), default=0)
        return [
            f"in chunks on {self.device}: epoch {duration(epoch.seconds)} · {num} x {num} chunks of "
            f"{self.vertices:,} vertices, {self.in_flight} in flight{dealt} · {copied}{filtered}{handed} · "
            f"computing {duration(epoch.compute_s)} ◀ bound by {self.bound}",
            f"swapped to the host: {size(sum(self.swapped.values()))}{in_file}:",
            *(f"  {name:{width}} {size(num_bytes):>9}" for name, num_bytes in self.swapped.items()),
            *([] if self.on_all is None else self.on_all.lines()[:1]),
        ]


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
    asked = config.fullgraph
    if not config.sampler.whole_graph:
        return None
    trainers, shares = named_trainers(platform, work, config)
    several = []
    if len(trainers) < 2:
        several = _accelerators(platform, work)
        trainers = several[:1]
    if not trainers:
        return None
    if len(trainers) == 1 and not asked.asks_for_chunks:
        budget = min(free_bytes(trainers[0]), asked.device_memory or math.inf)
        if sum(whole_graph_arrays(work.at(float(work.batch_size)), work).values()) <= budget:
            return None
    found = _simulated(platform, work, config, trainers, shares)
    if found is None or len(several) < 2:
        return found
    return replace(found, on_all=_simulated(platform, work, config, several, ()))


def _simulated(
    platform: Platform,
    work: TrainingWorkload,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    shares: Sequence[float],
) -> ChunkPrediction | None:
    """An epoch on some trainers; None where no chunks fit."""
    asked = config.fullgraph
    chunked = ChunkedWork.of(work, config, trainers[-1].device.kind)
    team = None if chunked is None else PredictedTeam.of(chunked, trainers, platform.host, config, shares)
    if chunked is None or team is None:
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
    limit = math.inf if asked.host_memory is None else asked.host_memory
    return ChunkPrediction(
        device="+".join(each.name for each in trainers),
        intervals=team.intervals,
        vertices=math.ceil(chunked.vertices / team.intervals),
        columns=tuple(map(len, dealt_columns(team.intervals, team.shares))),
        in_flight=team.in_flight,
        epoch=epoch,
        swapped=swapped,
        file_bytes=max(0.0, sum(swapped.values()) - limit),
        bound=_bound(epoch, trainers),
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


def _bound(epoch: ChunkedEpoch, trainers: Sequence[PlatformTrainer]) -> str:
    """What the busiest device does most: copying or computing; both where neither hides the other."""
    busy = [dict.fromkeys(("copy", "gather", "update"), 0.0) for _ in trainers]
    for task in epoch.tasks:
        queue, _, device = task.queue.rpartition(" ")
        what = next((what for what in ("gather", "update") if f": {what} " in task.name), "")
        if queue.startswith("copy"):
            busy[int(device)]["copy"] += task.seconds
        elif queue == "compute" and what:
            busy[int(device)][what] += task.seconds
    index = max(range(len(trainers)), key=lambda i: sum(busy[i].values()))
    spent, trainer = busy[index], trainers[index]
    on = f" on {trainer.name}" if len(trainers) > 1 else ""
    computing = spent["gather"] + spent["update"]
    if spent["copy"] > computing:
        return f"copying over its link ({trainer.device.link_gb_s:.3g} GB/s){on}"
    if spent["gather"] >= spent["update"]:
        return f"computing{on}: reading rows along edges {spent['gather'] / computing:.0%}"
    return f"computing{on}: products {spent['update'] / computing:.0%}"
