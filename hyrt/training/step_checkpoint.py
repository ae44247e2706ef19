"""Step checkpoints of full-graph steps, stored next to the checkpoint from which the step started."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hyrt.errors import CheckpointError, join_names, system_error_text
from hyrt.formatting import format_bytes
from hyrt.fullgraph.step_checkpoint import (
    StepCheckpoint,
    StepCheckpointFile,
    StepPosition,
    write_step_checkpoint,
)
from hyrt.telemetry.events import Notice
from hyrt.training.build_run import RunComponents
from hyrt.training.run_state import RunState

Array = NDArray[Any]


class RunStepCheckpointer:
    """`hyrt.fullgraph.step_checkpoint.StepCheckpointer` of a run.

    A step checkpoint is one file, which is deleted after a later checkpoint was written. It records the
    checkpoint from which the step started, and is only used by a run that resumes from that checkpoint. A
    full disk only causes a warning: a resumed run then repeats the step from its start. `folder` is the run's
    checkpoint folder, and `clock` returns seconds.
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
        """Writes the checkpoint of the run's state, if there is none, and returns its path."""
        self.on_move: Callable[[], None] = lambda: None
        """Called when a part of a step is done."""
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
            self._parts.warn(f"{error}: step {step} begins again")
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
                f"step {step} begins again: what was done of it was computed with other {others} than now"
            )
        if checkpoint is not None and found is not None:
            self._before_s = self._resumed_s = float(found.about["seconds"])
            text = f"continuing in step {step}, {_system_error_reason(checkpoint.position)}"
            self._parts.emit(Notice(kind="info", text=text))

    def take_seconds_before(self) -> float:
        """Return the time that earlier processes spent on the current step; later calls return 0."""
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
                "goes on from what was kept before" if self._saved_step == step else "begins the step again"
            )
            parts.warn(
                f"{self._folder}: what is done of step {step} ({format_bytes(num_bytes)}) could not be kept: "
                f"{reason}. A run that is resumed {then}"
            )
        else:
            self._saved_step = step
            if self.should_stop:
                parts.emit(
                    Notice(kind="info", text=f"stopped in step {step}, {_system_error_reason(position)}")
                )
        self._saved_at = self._clock()
        self._took_s = self._saved_at - began

    def saved(self, step: int) -> None:
        """Delete step checkpoints of earlier steps after the checkpoint of a step was written."""
        self._saved_at = self._clock()
        self._remove_others(step)

    def _path(self, step: int) -> Path:
        return self._folder / f"unfinished-{step:08d}.npz"

    def _remove_others(self, step: int) -> None:
        """Delete other steps' checkpoints and partial files of killed processes."""
        for path in (*self._folder.glob("unfinished-*.npz"), *self._folder.glob(".unfinished-*.partial")):
            if path != self._path(step):
                path.unlink(missing_ok=True)


def _system_error_reason(position: StepPosition) -> str:
    if not position.columns:
        return f"of whose {position.num_passes} parts {position.number} are done"
    done = sum(position.columns)
    return f"in pass {position.number + 1} of {position.num_passes}, where {done:,} columns are done"
