"""What a step over a whole graph in chunks took, as it is shown and recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hyrt_perfmodel.chunks.busy_spans import joined, length, overlap

from hyrt.quantities import size


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """What a device's queues did in a step."""

    in_bytes: int
    out_bytes: int
    """`in_bytes` and `out_bytes`: copied to the device, and from it."""
    copy_s: float = 0.0
    compute_s: float = 0.0
    hidden_s: float = 0.0
    """`copy_s`, `compute_s` and `hidden_s`: how long it copied, computed, and did both; 0 where it does not
    measure."""

    @classmethod
    def of_spans(
        cls,
        in_bytes: int,
        out_bytes: int,
        copied: Iterable[tuple[float, float]],
        computed: Iterable[tuple[float, float]],
    ) -> ChunkWork:
        """From the begins and ends, in seconds, of all copies and of all that was computed."""
        copies, computing = joined(copied), joined(computed)
        return cls(
            in_bytes=in_bytes,
            out_bytes=out_bytes,
            copy_s=length(copies),
            compute_s=length(computing),
            hidden_s=overlap(copies, computing),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedStep:
    """What a device did in a step over a whole graph in chunks."""

    intervals: int
    """P: into how many intervals the vertices were cut."""
    vertices: int
    """Vertices of the longest interval; others have one less at most."""
    in_bytes: int
    out_bytes: int
    """`in_bytes` and `out_bytes`: copied to the device, and from it."""
    host_bytes: int
    """Of the state that was swapped to the host."""
    file_bytes: int
    """Of that, what lives in a file."""
    copy_s: float = 0.0
    compute_s: float = 0.0
    """`copy_s` and `compute_s`: how long its queues copied, and computed; 0 where it does not measure."""
    hidden_s: float = 0.0
    """How long they did both at once."""
    reads: int = 0
    read_bytes: int = 0
    filtered: int = 0
    spared_bytes: int = 0
    filter_s: float = 0.0
    """`reads`, `read_bytes`, `filtered`, `spared_bytes`, `filter_s`: for how many chunks rows of an interval
    were brought, and how much, for how many of them the host had filtered these, what was not brought for
    that, and how long it took."""
    handed_bytes: int = 0
    """Of rows that a device got from another one instead of the host."""
    devices: int = 1
    """How many computed columns."""
    step_s: float = 0.0
    """How long all of it took, with what the host did."""
    by_device: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of each of them, by its name, the fields of `ChunkWork`."""

    def figures(self) -> dict[str, Any]:
        """All of it, for records."""
        return asdict(self)


def cut_text(figures: Mapping[str, Any]) -> str:
    """How a graph was cut, and what was copied and swapped, in a line.

    Parameters
    ----------
    figures
        Those of a `ChunkedStep`.
    """
    num = int(figures["intervals"])
    copied = f"{size(figures['in_bytes'])} in and {size(figures['out_bytes'])} out a step"
    if not figures["in_bytes"]:
        results = f", {size(figures['out_bytes'])} of results copied a step" if figures["out_bytes"] else ""
        copied = f"rows and edges read where they lie{results}"
    said = [f"{num} x {num} chunks of {int(figures['vertices']):,} vertices", copied]
    if figures.get("handed_bytes"):
        said.append(f"{size(figures['handed_bytes'])} handed on from device to device")
    elif figures.get("devices", 1) > 1:
        said.append("each device gets its rows from the host")
    if figures["host_bytes"]:
        in_file = f", {size(figures['file_bytes'])} of it in a file" if figures["file_bytes"] else ""
        said.append(f"{size(figures['host_bytes'])} swapped to the host{in_file}")
    return " · ".join(said)
