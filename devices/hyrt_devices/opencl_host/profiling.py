"""Times of a queue's commands on the device clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyrt.device import Span

Command = tuple[Any, Any]
"""Name of a command (or the kernel that it runs), and the command's event."""


def spans(commands: Sequence[Command]) -> list[Span]:
    """Return the name, start and end of each command. The commands must have completed."""
    return [
        (kernel if isinstance(kernel, str) else kernel.function_name, *_times(event))
        for kernel, event in commands
    ]


def span_s(events: Sequence[Any]) -> float:
    """Return the seconds between the first start and the last end of commands that have completed."""
    if not events:
        return 0.0
    starts, ends = zip(*map(_times, events), strict=True)
    return float(max(ends) - min(starts)) * 1e-9


def _times(event: Any) -> tuple[int, int]:
    """Return start and end in nanoseconds. `event.profile` would be ten times slower."""
    import pyopencl as cl

    return event.get_profiling_info(cl.profiling_info.START), event.get_profiling_info(cl.profiling_info.END)
