"""Hooks that environment variables request."""

from __future__ import annotations

import os

from hyrt.observe.hook import Hook


def hooks_of_environment(rank: int = 0, size: int = 1) -> list[Hook]:
    """Return the fault-injection hook if HYRT_FAULT is set, otherwise no hooks and no imports.

    Parameters
    ----------
    rank, size
        Rank of this process and number of ranks.

    Raises
    ------
    ConfigError
        If HYRT_FAULT cannot be parsed.
    """
    text = os.environ.get("HYRT_FAULT", "")
    if not text:
        return []
    from hyrt.observe.faults import parse_faults
    from hyrt.observe.injected_faults import InjectedFaults

    return [InjectedFaults(parse_faults(text), rank, size)]
