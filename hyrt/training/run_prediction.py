"""The prediction of a run, which is compared with its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hyrt_perfmodel.policy import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Prediction of a run, in the run's terms."""

    stages_s: Mapping[str, float]
    """Seconds per step: sample, load, transfer, propagate, synchronize."""
    iteration_s: float
    epoch_s: float
    """`iteration_s` and `epoch_s`: the times of a step and of an epoch, under `split` and `threads`."""
    relative_error: float | None
    """Relative error of the prediction: 0.1 is 10 %; None if unknown."""
    bottleneck: str
    """The stage that bounds the iteration."""
    split: Mapping[str, int]
    """Units of a step by trainer name: the configured split, or else the one with the best prediction."""
    threads: Threads
    """The configured thread counts, or else the counts with the best prediction."""
