"""What a run knows between two steps, and keeps in its checkpoints."""

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
    """Sums over all steps of a run, whichever processes did them: a resumed run adds to them."""

    steps: int = 0
    """How many."""
    seconds: float = 0.0
    """Wall time of the steps, without evaluations and checkpoints."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Work by stage."""
    epochs_s: list[float] = field(default_factory=list)
    """The seconds of each epoch whose steps are done."""
    decisions: int = 0
    """How often the resource manager changed the assignment."""
    peak_memory_bytes: int = 0
    """Most resident memory of any of the run's processes, as far as it was seen."""

    def add(self, times: StepTimes) -> None:
        """Count a step."""
        self.steps += 1
        self.seconds += times.iteration_s
        for stage, seconds in times.stage_s.items():
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def see_memory(self) -> int:
        """The peak with this process's."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory_bytes())
        return self.peak_memory_bytes

    def means(self, steps_per_epoch: int) -> dict[str, Any]:
        """`stages_s` and `iteration_s`, means of a step, and `epoch_s`; without steps only that, 0.

        The first epoch of a process also compiles: `epoch_s` is the median epoch, the faster one of two, and
        as many mean steps as an epoch has where none is done.
        """
        if not self.steps:
            return {"epoch_s": 0.0}
        stages_s = {stage: self.stage_s.get(stage, 0.0) / self.steps for stage in STAGES}
        iteration_s = self.seconds / self.steps
        epoch_s = median_low(self.epochs_s) if self.epochs_s else iteration_s * steps_per_epoch
        return {"stages_s": stages_s, "iteration_s": iteration_s, "epoch_s": epoch_s}


@dataclass(slots=True)
class Best:
    """The evaluation that chooses the weights a run ends with."""

    value: float = float("-inf")
    """What evaluations are compared by; the highest is the best."""
    epoch: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """`epoch` and `metrics`: the epoch of the evaluation, and what it found."""
    weights: dict[str, torch.Tensor] | None = None
    """The model's state then; None before the first evaluation."""
    evaluations_since: int = 0
    """How many have followed that were not better."""

    __repr__ = short_repr


@dataclass(slots=True)
class RunState:
    """Where a run is."""

    step: int = 0
    """Steps done in the whole run."""
    first_step: int = 0
    """Steps that were done before this process began."""
    epoch_s: float = 0.0
    """Wall time of the epoch's steps so far."""
    epoch_sums: tuple[float, float, int] = (0.0, 0.0, 0)
    """Loss, normalizer and edges of the epoch so far."""
    unevaluated: float | None = None
    """The loss of an epoch whose steps are done, but not its evaluation; None where there is no such epoch.
    """
    first_loss: float | None = None
    """The loss of the run's first step; None before it, and after checkpoints that do not have it."""
    totals: Totals = field(default_factory=Totals)
    best: Best = field(default_factory=Best)
    """`totals` and `best`: sums over all steps, and the best evaluation."""
    torch_generator: torch.Tensor | None = None
    """The state of torch's generator to go on with; None at the start of a run."""
    checkpoint: Path | None = None
    """The checkpoint that holds this state; None where it has changed since."""
    balance: dict[str, Any] | None = None
    """The assignments to go on with (`hyrt.balance.assignment_state`); None where there are none."""

    __repr__ = short_repr

    @classmethod
    def restored(cls, state: Mapping[str, Any], checkpoint: Path | None = None) -> Self:
        """From what `stored_calibration` gave; checkpoints of earlier versions have no totals and no
        assignments.
        """
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
        """What a checkpoint holds beside model and settings; `balance` are the assignments now."""
        self.totals.see_memory()
        return {
            "step": self.step,
            "epoch_s": self.epoch_s,
            "epoch_sums": self.epoch_sums,
            "totals": asdict(self.totals),
            "unevaluated": self.unevaluated,
            "first_loss": self.first_loss,
            # Not asdict, which would copy the weights.
            "best": {each.name: getattr(self.best, each.name) for each in fields(Best)},
            "torch_generator": torch.get_rng_state(),
            "balance": balance,
        }
