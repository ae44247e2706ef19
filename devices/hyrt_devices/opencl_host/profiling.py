"""When a queue's commands ran, on the device's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyrt.device import Span

Command = tuple[Any, Any]
"""What a command does, as a name or as the kernel that it runs, and its event."""


def spans(commands: Sequence[Command]) -> list[Span]:
    """What ran and when; all of it is over."""
    return [
        (what if isinstance(what, str) else what.function_name, *_times(event)) for what, event in commands
    ]


def span_s(events: Sequence[Any]) -> float:
    """Seconds from the start of the first command to the end of the last; all of them are over."""
    if not events:
        return 0.0
    starts, ends = zip(*map(_times, events), strict=True)
    return float(max(ends) - min(starts)) * 1e-9


def _times(event: Any) -> tuple[int, int]:
    """Start and end in nanoseconds; `event.profile` takes ten times as long."""
    import pyopencl as cl

    return event.get_profiling_info(cl.profiling_info.START), event.get_profiling_info(cl.profiling_info.END)
