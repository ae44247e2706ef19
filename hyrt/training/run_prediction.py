"""Prediction of a run, which is compared with its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hyrt_perfmodel.policy import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Prediction of a run, in terms of its trainers and stages."""

    stages_s: Mapping[str, float]
    """Seconds per step: sample, load, transfer, propagate, synchronize."""
    iteration_s: float
    epoch_s: float
    """Time of an epoch under `split` and `threads`; `iteration_s` is the time of a step."""
    relative_error: float | None
    """Relative error of the prediction: 0.1 is 10 %; None if unknown."""
    bottleneck: str
    """Stage that bounds the iteration."""
    split: Mapping[str, int]
    """Units of a step by trainer name, as configured or otherwise with the best prediction."""
    threads: Threads
    """Thread counts, as configured or otherwise with the best prediction."""
