"""Hooks that environment variables request."""

from __future__ import annotations

import os

from hyrt.telemetry.hooks import Hook


def hooks_from_environment(rank: int = 0, size: int = 1) -> list[Hook]:
    """Return the fault-injection hook if HYRT_FAULT is set, otherwise no hooks and no imports.

    `rank` and `size` are the number of this process and of all ranks. Raises ConfigError if HYRT_FAULT cannot
    be parsed.
    """
    text = os.environ.get("HYRT_FAULT", "")
    if not text:
        return []
    from hyrt.telemetry.faults import FaultInjectionHook, parse_faults

    return [FaultInjectionHook(parse_faults(text), rank, size)]
