"""Statistics of a chunked full-graph step for displays and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hyrt_perfmodel.task_simulation import merge_spans, overlap_length, total_length

from hyrt.formatting import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStats:
    """Statistics of a device's queues in a step."""

    in_bytes: int
    out_bytes: int
    """`in_bytes` and `out_bytes`: bytes copied to the device, and from it."""
    copy_s: float = 0.0
    compute_s: float = 0.0
    hidden_s: float = 0.0
    """`copy_s`, `compute_s`, `hidden_s`: time of copies, computation, and both at once; 0 if not measured."""

    @classmethod
    def from_spans(
        cls,
        in_bytes: int,
        out_bytes: int,
        copied: Iterable[tuple[float, float]],
        computed: Iterable[tuple[float, float]],
    ) -> ChunkStats:
        """Build the statistics from the start and end times, in seconds, of all copies and computations."""
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
    """P: number of vertex intervals."""
    vertices: int
    """Vertices of the longest interval; the others have at most one less."""
    in_bytes: int
    out_bytes: int
    """`in_bytes` and `out_bytes`: bytes copied to the device, and from it."""
    host_bytes: int
    """Bytes of state offloaded to the host."""
    file_bytes: int
    """The part of `host_bytes` that is in files."""
    copy_s: float = 0.0
    compute_s: float = 0.0
    """`copy_s` and `compute_s`: time of copies and of computation; 0 if not measured."""
    hidden_s: float = 0.0
    """Time during which copies and computation overlapped."""
    reads: int = 0
    read_bytes: int = 0
    filtered: int = 0
    spared_bytes: int = 0
    filter_s: float = 0.0
    """Row uploads for chunks: number, bytes, number filtered by the host, bytes saved, and filter time."""
    handed_bytes: int = 0
    """Bytes of rows that a device copied from another device instead of from the host."""
    devices: int = 1
    """Number of devices that computed columns."""
    step_s: float = 0.0
    """Wall time of the step, including work of the host."""
    by_device: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Fields of `ChunkStats` by device name."""

    def figures(self) -> dict[str, Any]:
        """Return all statistics as a dict, for records."""
        return asdict(self)


def describe_chunks(figures: Mapping[str, Any]) -> str:
    """Summarize in one line the chunks of a graph, and the copied and offloaded data."""
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
