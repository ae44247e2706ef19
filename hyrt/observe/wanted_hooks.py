"""The hooks that the environment asks for."""

from __future__ import annotations

import os

from hyrt.observe.hook import Hook


def hooks_of_environment(rank: int = 0, size: int = 1) -> list[Hook]:
    """The hook of what HYRT_FAULT asks for; as a rule none, and then nothing of faults is imported.

    Parameters
    ----------
    rank, size
        The number of this process among those that train together, and how many there are.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    text = os.environ.get("HYRT_FAULT", "")
    if not text:
        return []
    from hyrt.observe.faults import parse_faults
    from hyrt.observe.injected_faults import InjectedFaults

    return [InjectedFaults(parse_faults(text), rank, size)]
