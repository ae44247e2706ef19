"""Text summary of steps: channels and threads of the pipeline stages, and full-graph steps in chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hyrt.formatting import format_bytes, format_duration
from hyrt.fullgraph.chunk_stats import describe_chunks

CHANNELS = {"sample": "sampled", "load": "loaded", "transfer": "staged", "propagate": "done"}
"""Output channel of each stage."""
THREADS = {"sample": "sample", "load": "load", "propagate": "train"}
"""Name of the host threads of each stage."""


def fill_and_depth(
    channel: str, queued: Mapping[str, float], queue_depth: Mapping[str, int]
) -> tuple[float, int]:
    """Return the number of mini-batches in a channel, and its capacity.

    `loaded` means the sum over all trainers, and `loaded.cpu:0` the channel of one trainer.
    """
    names = [name for name in queue_depth if f"{name}.".startswith(f"{channel}.")]
    return sum(queued.get(name, 0.0) for name in names), sum(queue_depth[name] for name in names)


# Minimum fraction of a step that a device must be busy to be the bottleneck.
_MIN_BOTTLENECK_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSummary:
    """Text about a trainer for a display or page; a line is empty if its data are missing."""

    cut: str
    """Number of chunks, and the amounts of copied and swapped data."""
    filtered: str
    """Number of chunks with filtered rows, and the savings."""
    devices: Mapping[str, str]
    """Compute and copy time by device, and the fraction of copying that overlaps with computation."""
    bound: str
    """Bottleneck of the step."""

    @classmethod
    def from_stats(
        cls, trainer: str, figures: Mapping[str, Any], label: Callable[[str], str] = str
    ) -> ChunkSummary:
        """Create the summary of a step; `label` formats device names.

        `figures` has the statistics of `hyrt.fullgraph.chunk_stats.ChunkedStep`, also of earlier versions.
        """
        works = device_stats(trainer, figures)
        texts = {
            label(name): device_text(work, is_only_device=len(works) == 1) for name, work in works.items()
        }
        return cls(
            cut=describe_chunks(figures),
            filtered=filter_text(figures),
            devices={name: text for name, text in texts.items() if text},
            bound=bound_text(works, figures.get("step_s") or 0.0, label),
        )


def device_stats(trainer: str, figures: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """Return the `ChunkStats` statistics by device. Earlier versions have recorded only one device."""
    works: Mapping[str, Mapping[str, float]] = figures.get("by_device") or {trainer: figures}
    return works


def filter_text(figures: Mapping[str, Any]) -> str:
    """Describe the filtering of rows: number of chunks and savings. Empty if no rows are copied."""
    reads, filtered = int(figures.get("reads") or 0), int(figures.get("filtered") or 0)
    if not filtered:
        if not reads or not figures["in_bytes"]:
            return ""
        return f"filtering: none of {reads:,} chunks, each receives all rows of an interval"
    spared, read = figures["spared_bytes"], figures.get("read_bytes") or 0
    share = f" ({spared / (spared + read):.0%} of all rows)" if read else ""
    return (
        f"filtering: rows for {filtered:,} of {reads:,} chunks, {format_bytes(spared)}{share} not copied, "
        f"in {format_duration(figures['filter_s'])}"
    )


def device_text(work: Mapping[str, float], *, is_only_device: bool) -> str:
    """Describe the compute and copy time of a device; empty if the device does not measure times.

    `work` has the statistics of `hyrt.fullgraph.chunk_stats.ChunkStats`. The amounts of data that a single
    device copies are shown elsewhere.
    """
    copy_s, compute_s = work["copy_s"], work["compute_s"]
    if not work["in_bytes"] and compute_s:
        text = f"computing {format_duration(compute_s)} on rows and edges in place"
        out = "" if is_only_device else f" ({format_bytes(work['out_bytes'])})"
        return f"{text}, copying {format_duration(copy_s)} of results{out}" if copy_s else text
    if not copy_s:
        return ""
    amounts = (
        ""
        if is_only_device
        else f" ({format_bytes(work['in_bytes'])} in, {format_bytes(work['out_bytes'])} out)"
    )
    return (
        f"copying {format_duration(copy_s)}{amounts}, {work['hidden_s'] / copy_s:.0%} of it hidden behind "
        f"{format_duration(compute_s)} of computing"
    )


def bound_text(
    works: Mapping[str, Mapping[str, float]], step_s: float, label: Callable[[str], str] = str
) -> str:
    """Describe the bottleneck of a step that took `step_s` seconds; empty if it was not measured.

    `works` has the `ChunkStats` statistics by device, and `label` formats device names.
    """
    busy = {name: work["compute_s"] + work["copy_s"] - work["hidden_s"] for name, work in works.items()}
    if not step_s or not any(busy.values()):
        return ""
    name = max(busy, key=busy.__getitem__)
    work, share = works[name], busy[name] / step_s
    if share < _MIN_BOTTLENECK_SHARE:
        return (
            f"bound by the host: {label(name)} computes and copies for only {share:.0%} of a "
            f"step of {format_duration(step_s)}"
        )
    activity = "copying" if work["copy_s"] - work["hidden_s"] > work["compute_s"] else "computing"
    share_text = f"{share:.0%} of a step of {format_duration(step_s)}"
    return f"bound by {activity} on {label(name)}, which is busy for {share_text}"
