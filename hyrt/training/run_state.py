"""State of a run between two steps, as saved in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median_low
from typing import Any, Self

import torch
from hyrt_perfmodel.policy import STAGES

from hyrt.formatting import short_repr
from hyrt.pipeline.work_items import StepTimes
from hyrt.runtime.hardware import peak_memory_bytes


@dataclass(slots=True)
class Totals:
    """Sums over all steps of a run in any process; a resumed run continues the sums."""

    steps: int = 0
    seconds: float = 0.0
    """Wall time of the steps, without evaluations and checkpoints."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds of work by stage."""
    epochs_s: list[float] = field(default_factory=list)
    """Seconds of each epoch whose steps are done."""
    decisions: int = 0
    """Number of assignment changes by the resource manager."""
    peak_memory_bytes: int = 0
    """Peak resident memory observed in any of the run's processes."""

    def add(self, times: StepTimes) -> None:
        self.steps += 1
        self.seconds += times.iteration_s
        for stage, seconds in times.stage_s.items():
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def see_memory(self) -> int:
        """Update the peak memory with this process's peak, and return it."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory_bytes())
        return self.peak_memory_bytes

    def means(self, steps_per_epoch: int) -> dict[str, Any]:
        """Return mean `stages_s` and `iteration_s` per step, and `epoch_s`; only `epoch_s` (0) without steps.

        The first epoch of a process also compiles, so `epoch_s` is the median epoch, or the faster one of
        two. If no epoch is done, it is the mean step time multiplied by the number of steps per epoch.
        """
        if not self.steps:
            return {"epoch_s": 0.0}
        stages_s = {stage: self.stage_s.get(stage, 0.0) / self.steps for stage in STAGES}
        iteration_s = self.seconds / self.steps
        epoch_s = median_low(self.epochs_s) if self.epochs_s else iteration_s * steps_per_epoch
        return {"stages_s": stages_s, "iteration_s": iteration_s, "epoch_s": epoch_s}


@dataclass(slots=True)
class Best:
    """Best evaluation so far, which determines the final weights of a run."""

    value: float = float("-inf")
    """Value by which evaluations are compared; higher is better."""
    epoch: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Results of the evaluation after epoch `epoch`."""
    weights: dict[str, torch.Tensor] | None = None
    """State of the model at that evaluation; None before the first evaluation."""
    evaluations_since: int = 0
    """Number of later evaluations, all without improvement."""

    __repr__ = short_repr


@dataclass(slots=True)
class RunState:
    """Progress of a run."""

    step: int = 0
    """Number of finished steps of the whole run."""
    first_step: int = 0
    """Number of steps finished before this process started."""
    epoch_s: float = 0.0
    """Wall time of the epoch's steps so far."""
    epoch_sums: tuple[float, float, int] = (0.0, 0.0, 0)
    """Loss, normalizer and edges of the epoch so far."""
    unevaluated: float | None = None
    """Loss of an epoch whose steps are done but whose evaluation is not; None if there is no such epoch."""
    first_loss: float | None = None
    """Loss of the run's first step; None before that step, and after older checkpoints without this value."""
    totals: Totals = field(default_factory=Totals)
    best: Best = field(default_factory=Best)
    torch_generator: torch.Tensor | None = None
    """State of torch's random generator to resume from; None at the start of a run."""
    checkpoint: Path | None = None
    """Checkpoint with this state; None if the state has changed since."""
    balance: dict[str, Any] | None = None
    """State from `assignment_state` to resume with; None if there is none."""

    __repr__ = short_repr

    @classmethod
    def restored(cls, state: Mapping[str, Any], checkpoint: Path | None = None) -> Self:
        """Restore from the result of `to_state`; earlier checkpoint versions lack totals and assignments."""
        return cls(
            step=state["step"],
            first_step=state["step"],
            epoch_s=state["epoch_s"],
            epoch_sums=state["epoch_sums"],
            unevaluated=state["unevaluated"],
            totals=Totals(**(state.get("totals") or {})),
            best=Best(**{each.name: state["best"][each.name] for each in fields(Best)}),
            first_loss=state.get("first_loss"),
            torch_generator=state["torch_generator"],
            checkpoint=checkpoint,
            balance=state.get("balance"),
        )

    def to_state(self, balance: dict[str, Any] | None) -> dict[str, Any]:
        """Return the checkpoint contents except model and settings; `balance` has the current assignments."""
        self.totals.see_memory()
        return {
            "step": self.step,
            "epoch_s": self.epoch_s,
            "epoch_sums": self.epoch_sums,
            "totals": asdict(self.totals),
            "unevaluated": self.unevaluated,
            "first_loss": self.first_loss,
            # asdict would copy the weights.
            "best": {each.name: getattr(self.best, each.name) for each in fields(Best)},
            "torch_generator": torch.get_rng_state(),
            "balance": balance,
        }
