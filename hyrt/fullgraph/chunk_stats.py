"""Statistics of a chunked full-graph step for displays and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hyrt_perfmodel.task_simulation import merge_spans, overlap_length, total_length

from hyrt.formatting import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStats:
    """Statistics of one device in a step."""

    in_bytes: int
    out_bytes: int
    """Bytes copied from the device; `in_bytes` are the bytes copied to it."""
    copy_s: float = 0.0
    compute_s: float = 0.0
    hidden_s: float = 0.0
    """Overlap of copies (`copy_s`) and computation (`compute_s`) in seconds; all are 0 if not measured."""

    @classmethod
    def from_spans(
        cls,
        in_bytes: int,
        out_bytes: int,
        copied: Iterable[tuple[float, float]],
        computed: Iterable[tuple[float, float]],
    ) -> ChunkStats:
        """Build the statistics from the start and end times of all copies and computations, in seconds."""
        copy_spans, compute_spans = merge_spans(copied), merge_spans(computed)
        return cls(
            in_bytes=in_bytes,
            out_bytes=out_bytes,
            copy_s=total_length(copy_spans),
            compute_s=total_length(compute_spans),
            hidden_s=overlap_length(copy_spans, compute_spans),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedStep:
    """Statistics of a chunked full-graph step."""

    intervals: int
    """Number P of vertex intervals."""
    vertices: int
    """Number of vertices of the longest interval; other intervals have at most one less."""
    in_bytes: int
    out_bytes: int
    """Bytes copied from the devices; `in_bytes` are the bytes copied to them."""
    host_bytes: int
    """Bytes of intermediate matrices on the host."""
    file_bytes: int
    """Part of `host_bytes` that is in files."""
    copy_s: float = 0.0
    compute_s: float = 0.0
    """Time of computation in seconds, 0 if not measured; `copy_s` is the time of copies."""
    hidden_s: float = 0.0
    """Time during which copies and computation overlapped."""
    reads: int = 0
    read_bytes: int = 0
    filtered: int = 0
    spared_bytes: int = 0
    filter_s: float = 0.0
    """Time to select rows on the host, after counters of row uploads: number, bytes, filtered, bytes saved.
    """
    handed_bytes: int = 0
    """Bytes of rows that devices copied from another device instead of from the host."""
    devices: int = 1
    """Number of devices that computed columns."""
    step_s: float = 0.0
    """Wall time of the step, including the work on the host."""
    by_device: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Fields of `ChunkStats` by device name."""

    def figures(self) -> dict[str, Any]:
        """Return all statistics as a dict, for records."""
        return asdict(self)


def describe_chunks(figures: Mapping[str, Any]) -> str:
    """Describe in one line the chunks of a graph, and the copied and offloaded bytes."""
    num = int(figures["intervals"])
    copies = f"{format_bytes(figures['in_bytes'])} in and {format_bytes(figures['out_bytes'])} out per step"
    if not figures["in_bytes"]:
        results = (
            f", {format_bytes(figures['out_bytes'])} of results copied per step"
            if figures["out_bytes"]
            else ""
        )
        copies = f"rows and edges read in place{results}"
    parts = [f"{num} x {num} chunks of {int(figures['vertices']):,} vertices", copies]
    if figures.get("handed_bytes"):
        parts.append(f"{format_bytes(figures['handed_bytes'])} forwarded between devices")
    elif figures.get("devices", 1) > 1:
        parts.append("each device reads its rows from the host")
    if figures["host_bytes"]:
        in_file = f", {format_bytes(figures['file_bytes'])} of it in a file" if figures["file_bytes"] else ""
        parts.append(f"{format_bytes(figures['host_bytes'])} swapped to the host{in_file}")
    return " · ".join(parts)
