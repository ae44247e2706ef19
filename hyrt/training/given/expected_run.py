"""What the performance model expects of a run, and would start it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyrt_perfmodel.assignment import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRun:
    """A run's prediction, in the words of the run."""

    stages_s: Mapping[str, float]
    """Seconds a step: sample, load, transfer, propagate, synchronize."""
    iteration_s: float
    epoch_s: float
    """`iteration_s` and `epoch_s`: the times of a step and of an epoch, under `split` and `threads`."""
    relative_error: float | None
    """How far off it may be: 0.1 is 10 %; None where nothing is known of it."""
    bottleneck: str
    """The stage that bounds the iteration."""
    split: Mapping[str, int]
    """Units of a step by trainer's name. That of the settings where they fix it, else the one predicted best.
    """
    threads: Threads
    """Those of the settings where they give them, else predicted best."""


def expected_figures(expected: ExpectedRun) -> dict[str, Any]:
    """What a run's records say of it, under the names of `hyrt predict --json`."""
    return {
        "stages_s": dict(expected.stages_s),
        "iteration_s": expected.iteration_s,
        "epoch_s": expected.epoch_s,
        "relative_error": expected.relative_error,
        "bottleneck": expected.bottleneck,
    }
