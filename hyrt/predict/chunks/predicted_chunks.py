"""Result of predicting full-graph training in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch

from hyrt.quantities import duration, size


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPrediction:
    """Predicted epoch in chunks on one device, or on several."""

    device: str
    """Device name; names of several devices are joined by `+`."""
    intervals: int
    """P: number of vertex intervals."""
    vertices: int
    """Vertices per interval."""
    columns: tuple[int, ...]
    """Chunk columns per device."""
    in_flight: int
    """Chunks on the device at once."""
    epoch: ChunkedEpoch
    """The simulated epoch."""
    synchronize_s: float
    """Seconds of the gradient reduction and the optimizer step."""
    relative_error: float
    """Expected relative error."""
    gather_part: float
    """Fraction of the epoch in which the busiest device gathers along edges, including its copies."""
    file_s: float = 0.0
    """Seconds of disk I/O for the part of a file that does not fit the page cache."""
    swapped: Mapping[str, float]
    """Bytes per array that stays on the host, by display name."""
    file_bytes: float
    """Portion of these bytes that must be stored in a file."""
    bound: str
    """Description of what bounds the epoch."""
    on_all: ChunkPrediction | None = None
    """Prediction on all accelerators of the platform together, if there are several."""

    @property
    def epoch_s(self) -> float:
        """Seconds per epoch."""
        return self.epoch.seconds + self.file_s + self.synchronize_s

    @property
    def reads(self) -> int:
        """Number of chunks for which rows of an interval are copied."""
        return sum(task.queue.startswith("copy in") and ": rows " in task.name for task in self.epoch.tasks)

    @property
    def filtered(self) -> int:
        """Number of these chunks whose rows the host filters."""
        return sum(task.queue.startswith("filter") for task in self.epoch.tasks)

    @property
    def handed(self) -> int:
        """Number of chunks for which a device receives rows from its predecessor under the same switch."""
        return sum("passed on" in task.name for task in self.epoch.tasks)

    def to_json(self) -> dict[str, Any]:
        """Return the content that `hyrt predict --json` prints."""
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
        """Return the lines that `hyrt predict` prints."""
        epoch, num = self.epoch, self.intervals
        low, high = (self.epoch_s * (1 + sign * self.relative_error) for sign in (-1, 1))
        copied = "reads host memory in place"
        if epoch.copy_s and self.device.startswith("cpu:") and len(self.columns) == 1:
            copied = f"copying sums and results in memory {duration(epoch.copy_s)}"
        elif epoch.copy_s:
            copied = f"copying {duration(epoch.copy_s)}, {epoch.hidden:.0%} of it hidden"
        columns = ""
        if len(self.columns) > 1:
            columns = f" · {', '.join(map(str, self.columns))} columns each"
        handed = f" · rows of {self.handed:,} chunks handed on under a switch" if self.handed else ""
        filtered = f" · rows filtered for {self.filtered:,} of {self.reads:,} chunks" if self.filtered else ""
        in_file = f", {size(self.file_bytes)} of it in a file" if self.file_bytes else ""
        if self.file_s:
            in_file += f", for which the disk takes {duration(self.file_s)} an epoch"
        width = max(map(len, self.swapped), default=0)
        return [
            f"in chunks on {self.device}: epoch {duration(self.epoch_s)} ({duration(low)} to "
            f"{duration(high)}) · {num} x {num} chunks of "
            f"{self.vertices:,} vertices, {self.in_flight} in flight{columns} · {copied}{filtered}{handed} · "
            f"computing {duration(epoch.compute_s)} ◀ bound by {self.bound}",
            f"swapped to the host: {size(sum(self.swapped.values()))}{in_file}:",
            *(f"  {name:{width}} {size(num_bytes):>9}" for name, num_bytes in self.swapped.items()),
            *([] if self.on_all is None else self.on_all.lines()[:1]),
        ]
