"""State of a run between two steps and within full-graph steps, as saved in checkpoints."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median_low
from typing import Any, Self

import torch
from hyrt_perfmodel.policy import STAGES
from numpy.typing import NDArray

from hyrt.errors import CheckpointError, join_names, system_error_text
from hyrt.formatting import format_bytes, short_repr
from hyrt.fullgraph.step_checkpoint import (
    StepCheckpoint,
    StepCheckpointFile,
    StepPosition,
    write_step_checkpoint,
)
from hyrt.pipeline.work_items import StepTimes
from hyrt.runtime.hardware import peak_memory_bytes
from hyrt.telemetry.events import Notice
from hyrt.training.build_run import RunComponents


@dataclass(slots=True)
class Totals:
    """Totals over all steps of a run in all its processes; a resumed run continues them."""

    steps: int = 0
    seconds: float = 0.0
    """Wall time of the steps in seconds, without evaluations and checkpoints."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Busy seconds by stage."""
    epochs_s: list[float] = field(default_factory=list)
    """Duration of each epoch whose steps are done, in seconds."""
    decisions: int = 0
    """Number of assignment changes by the resource manager."""
    peak_memory_bytes: int = 0
    """Peak resident memory of any process of the run."""

    def add(self, times: StepTimes) -> None:
        self.steps += 1
        self.seconds += times.iteration_s
        for stage, seconds in times.stage_s.items():
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def see_memory(self) -> int:
        """Update the peak memory with the peak of this process, and return it."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory_bytes())
        return self.peak_memory_bytes

    def means(self, steps_per_epoch: int) -> dict[str, Any]:
        """Return `stages_s` and `iteration_s` (means per step) and `epoch_s`; only `epoch_s=0` without steps.

        The first epoch of a process includes compilation, so `epoch_s` is the median epoch, or the faster of
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
    """Metrics of the evaluation after epoch `epoch`, by split."""
    weights: dict[str, torch.Tensor] | None = None
    """Model weights at this evaluation; None before the first evaluation."""
    evaluations_since: int = 0
    """Number of evaluations since then, all without improvement."""

    __repr__ = short_repr


@dataclass(slots=True)
class RunState:
    """Progress of a run."""

    step: int = 0
    """Number of finished steps of the whole run."""
    first_step: int = 0
    """Number of steps that were finished before this process started."""
    epoch_s: float = 0.0
    """Wall time of the current epoch's steps so far, in seconds."""
    epoch_sums: tuple[float, float, int] = (0.0, 0.0, 0)
    """Sums of loss, normalizer and edges over the current epoch so far."""
    unevaluated: float | None = None
    """Loss of an epoch that is complete except for its evaluation; None if there is no such epoch."""
    first_loss: float | None = None
    """Loss of the run's first step; None before this step, and after old checkpoints without this value."""
    totals: Totals = field(default_factory=Totals)
    best: Best = field(default_factory=Best)
    torch_generator: torch.Tensor | None = None
    """State of torch's random generator to restore; None at the start of a run."""
    checkpoint: Path | None = None
    """Checkpoint with this state; None if the state has changed since then."""
    balance: dict[str, Any] | None = None
    """Result of `assignment_state` to restore; None if there is none."""

    __repr__ = short_repr

    @classmethod
    def restored(cls, state: Mapping[str, Any], checkpoint: Path | None = None) -> Self:
        """Restore a result of `to_state`. Checkpoints of earlier versions lack totals and assignments."""
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
        """Return the checkpoint contents except model and settings, with the assignments `balance`."""
        self.totals.see_memory()
        return {
            "step": self.step,
            "epoch_s": self.epoch_s,
            "epoch_sums": self.epoch_sums,
            "totals": asdict(self.totals),
            "unevaluated": self.unevaluated,
            "first_loss": self.first_loss,
            # dataclasses.asdict would copy the weights.
            "best": {each.name: getattr(self.best, each.name) for each in fields(Best)},
            "torch_generator": torch.get_rng_state(),
            "balance": balance,
        }


Array = NDArray[Any]


class RunStepCheckpointer:
    """`hyrt.fullgraph.step_checkpoint.StepCheckpointer` of a run.

    A step checkpoint is one file, which is deleted after a later checkpoint has been written. It records the
    checkpoint from which the step started, and is used only by a run that resumes from this checkpoint. If
    the disk is full, the run warns and continues; a resumed run then repeats the step from its start.
    `folder` is the checkpoint folder of the run, and `clock` returns seconds.
    """

    def __init__(
        self,
        parts: RunComponents,
        state: RunState,
        folder: Path,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._parts = parts
        self._state = state
        self._folder = folder
        self._clock = clock
        self.save_whole: Callable[[], Path | None] = lambda: None
        """Function that returns the path of this state's checkpoint, which it writes if needed."""
        self.on_move: Callable[[], None] = lambda: None
        """Callback when a part of a step is done."""
        self._saved_at = self._started_at = clock()
        self._took_s = self._before_s = self._resumed_s = 0.0
        self._has_looked_up_step = False
        self._has_failed = False
        self._saved_step: int | None = None
        self._found: StepCheckpointFile | None = None

    @property
    def is_due(self) -> bool:
        seconds = self._clock() - self._saved_at
        by_time = not self._has_failed and self._parts.config.checkpoint.is_due_within(seconds, self._took_s)
        return by_time or self.should_stop

    @property
    def should_stop(self) -> bool:
        return self._parts.should_stop()

    def report_progress(self) -> None:
        self.on_move()

    def take_resumed_step(self, step: int) -> StepCheckpoint | None:
        if self._has_looked_up_step:
            return None
        self._has_looked_up_step = True
        path, begins_from = self._path(step), self._state.checkpoint
        if begins_from is None or not path.exists():
            return None
        try:
            found = StepCheckpointFile.read(path, self.report_progress)
        except CheckpointError as error:
            self._parts.warn(f"{error}. Restarting step {step}")
            return None
        if found.about.get("checkpoint") != begins_from.name:
            return None
        self._found = found
        return found

    def start_step(self, plan: Mapping[str, Any], checkpoint: StepCheckpoint | None) -> None:
        self._started_at = self._clock()
        self._before_s, found, self._found = 0.0, self._found, None
        step = self._state.step
        self._saved_step = None if checkpoint is None else step
        if checkpoint is None and found is not None:
            was = found.position.plan
            others = join_names([name for name in plan if plan[name] != was.get(name)])
            self._parts.warn(
                f"step {step} is restarted, because its saved part was computed with different {others}"
            )
        if checkpoint is not None and found is not None:
            self._before_s = self._resumed_s = float(found.about["seconds"])
            text = f"continuing in step {step}, {_describe_position(checkpoint.position)}"
            self._parts.emit(Notice(kind="info", text=text))

    def take_seconds_before(self) -> float:
        """Return the seconds that earlier processes spent on the current step; later calls return 0."""
        seconds, self._resumed_s = self._resumed_s, 0.0
        return seconds

    def save(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        parts, step = self._parts, self._state.step
        began = self._clock()
        whole = self.save_whole()
        assert whole is not None
        num_bytes = sum(matrix.nbytes for matrix in matrices.values())
        about = {"checkpoint": whole.name, "seconds": self._before_s + began - self._started_at}

        def before(operation: str) -> None:
            for hook in parts.hooks:
                hook.before_write(step, operation)

        def write() -> None:
            self._remove_others(step)
            if num_bytes > (free := shutil.disk_usage(self._folder).free):
                raise OSError(f"{format_bytes(free)} are free")
            write_step_checkpoint(self._path(step), position, matrices, about, before, self.report_progress)

        try:
            parts.call("checkpoint", step, write)
        except OSError as error:
            self._has_failed = True
            reason = system_error_text(error) if error.errno else str(error)
            then = (
                "continues from the previously saved part"
                if self._saved_step == step
                else "restarts the step"
            )
            parts.warn(
                f"{self._folder}: the finished part of step {step} ({format_bytes(num_bytes)}) could not "
                f"be saved: {reason}. A resumed run {then}"
            )
        else:
            self._saved_step = step
            if self.should_stop:
                parts.emit(
                    Notice(kind="info", text=f"stopped in step {step}, {_describe_position(position)}")
                )
        self._saved_at = self._clock()
        self._took_s = self._saved_at - began

    def saved(self, step: int) -> None:
        """Delete the step checkpoints of earlier steps, after the checkpoint of `step` has been written."""
        self._saved_at = self._clock()
        self._remove_others(step)

    def _path(self, step: int) -> Path:
        return self._folder / f"unfinished-{step:08d}.npz"

    def _remove_others(self, step: int) -> None:
        """Delete the checkpoints of other steps, and partial files of killed processes."""
        for path in (*self._folder.glob("unfinished-*.npz"), *self._folder.glob(".unfinished-*.partial")):
            if path != self._path(step):
                path.unlink(missing_ok=True)


def _describe_position(position: StepPosition) -> str:
    if not position.columns:
        return f"with {position.number} of its {position.num_passes} parts done"
    done = sum(position.columns)
    return f"in pass {position.number + 1} of {position.num_passes}, with {done:,} columns done"
