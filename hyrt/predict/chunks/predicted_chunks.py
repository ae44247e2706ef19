"""What a run that trains a whole graph in chunks is predicted to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch

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
    synchronize_s: float
    """Seconds of adding up gradients and stepping the optimiser."""
    relative_error: float
    """How far off it may be."""
    gather_part: float
    """The part of the epoch in which the busiest device gathers along edges, and copies for that."""
    file_s: float = 0.0
    """Seconds in which the disk reads and writes what of a file no memory keeps."""
    swapped: Mapping[str, float]
    """Bytes of each array that stays on the host, by a name for people."""
    file_bytes: float
    """Of them, what has to live in a file."""
    bound: str
    """What bounds the epoch, in words."""
    on_all: ChunkPrediction | None = None
    """On all accelerators of the platform that share the graph, where there are several."""

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch."""
        return self.epoch.seconds + self.file_s + self.synchronize_s

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
            "epoch_s": self.epoch_s,
            "relative_error": self.relative_error,
            "synchronize_s": self.synchronize_s,
            "copy_s": self.epoch.copy_s,
            "compute_s": self.epoch.compute_s,
            "hidden": self.epoch.hidden,
            "swapped_bytes": {name: round(num_bytes) for name, num_bytes in self.swapped.items()},
            "file_bytes": round(self.file_bytes),
            "file_s": self.file_s,
            "bound": self.bound,
            "on_all": None if self.on_all is None else self.on_all.to_json(),
        }

    def lines(self) -> list[str]:
        """As `hyrt predict` prints it."""
        epoch, num = self.epoch, self.intervals
        low, high = (self.epoch_s * (1 + sign * self.relative_error) for sign in (-1, 1))
        copied = "reads host memory in place"
        if epoch.copy_s and self.device.startswith("cpu:") and len(self.columns) == 1:
            copied = f"copying sums and results in memory {duration(epoch.copy_s)}"
        elif epoch.copy_s:
            copied = f"copying {duration(epoch.copy_s)}, {epoch.hidden:.0%} of it hidden"
        dealt = ""
        if len(self.columns) > 1:
            dealt = f" · {', '.join(map(str, self.columns))} columns each"
        handed = f" · rows of {self.handed:,} chunks handed on under a switch" if self.handed else ""
        filtered = f" · rows filtered for {self.filtered:,} of {self.reads:,} chunks" if self.filtered else ""
        in_file = f", {size(self.file_bytes)} of it in a file" if self.file_bytes else ""
        if self.file_s:
            in_file += f", for which the disk takes {duration(self.file_s)} an epoch"
        width = max(map(len, self.swapped), default=0)
        return [
            f"in chunks on {self.device}: epoch {duration(self.epoch_s)} ({duration(low)} to "
            f"{duration(high)}) · {num} x {num} chunks of "
            f"{self.vertices:,} vertices, {self.in_flight} in flight{dealt} · {copied}{filtered}{handed} · "
            f"computing {duration(epoch.compute_s)} ◀ bound by {self.bound}",
            f"swapped to the host: {size(sum(self.swapped.values()))}{in_file}:",
            *(f"  {name:{width}} {size(num_bytes):>9}" for name, num_bytes in self.swapped.items()),
            *([] if self.on_all is None else self.on_all.lines()[:1]),
        ]
