"""Keeps what is done of a step over a whole graph beside the checkpoint that the step begins from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hyrt.errors import CheckpointError, listed, told_of_system
from hyrt.fullgraph.unfinished.kept_file import KeptFile, write_kept
from hyrt.fullgraph.unfinished.step_keeper import KeptStep, StepPosition
from hyrt.observe.events import Notice
from hyrt.quantities import size
from hyrt.training.compose import RunParts
from hyrt.training.run_state import RunState

Array = NDArray[Any]


class UnfinishedSteps:
    """`hyrt.fullgraph.unfinished.step_keeper.StepKeeper` of a run.

    A step is kept in one file, which is gone once a later checkpoint is there. It says from which checkpoint
    the step began, and counts for a run that goes on from that one alone. A disk without room for it costs a
    warning: the step then begins again where the run is resumed.

    Parameters
    ----------
    parts, state
        The run, and where it is.
    folder
        The folder of its checkpoints.
    clock
        Seconds; replaceable in tests.
    """

    def __init__(
        self,
        parts: RunParts,
        state: RunState,
        folder: Path,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._parts = parts
        self._state = state
        self._folder = folder
        self._clock = clock
        self.save_whole: Callable[[], Path | None] = lambda: None
        """Writes the checkpoint of the run's state, where there is none, and gives its path."""
        self.on_move: Callable[[], None] = lambda: None
        """Hears that something of a step is done."""
        self._kept_at = self._begun_at = clock()
        self._took_s = self._before_s = self._resumed_s = 0.0
        self._was_asked = False
        self._has_failed = False
        self._kept_step: int | None = None
        self._found: KeptFile | None = None

    @property
    def is_due(self) -> bool:
        seconds = self._clock() - self._kept_at
        by_time = not self._has_failed and self._parts.config.checkpoint.is_due_within(seconds, self._took_s)
        return by_time or self.stops

    @property
    def stops(self) -> bool:
        return self._parts.should_stop()

    def moved(self) -> None:
        self.on_move()

    def begun(self, step: int) -> KeptStep | None:
        if self._was_asked:
            return None
        self._was_asked = True
        path, begins_from = self._path(step), self._state.checkpoint
        if begins_from is None or not path.exists():
            return None
        try:
            found = KeptFile.read(path, self.moved)
        except CheckpointError as error:
            self._parts.warn(f"{error}: step {step} begins again")
            return None
        if found.about.get("checkpoint") != begins_from.name:
            return None
        self._found = found
        return found

    def begins(self, plan: Mapping[str, Any], kept: KeptStep | None) -> None:
        self._begun_at = self._clock()
        self._before_s, found, self._found = 0.0, self._found, None
        step = self._state.step
        self._kept_step = None if kept is None else step
        if kept is None and found is not None:
            was = found.position.plan
            others = listed([name for name in plan if plan[name] != was.get(name)])
            self._parts.warn(
                f"step {step} begins again: what was done of it was computed with other {others} than now"
            )
        if kept is not None and found is not None:
            self._before_s = self._resumed_s = float(found.about["seconds"])
            text = f"continuing in step {step}, {_told(kept.position)}"
            self._parts.emit(Notice(kind="info", text=text))

    def take_seconds_before(self) -> float:
        """How long earlier processes have computed the step that is done now; once."""
        seconds, self._resumed_s = self._resumed_s, 0.0
        return seconds

    def keep(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        parts, step = self._parts, self._state.step
        began = self._clock()
        whole = self.save_whole()
        assert whole is not None
        wanted = sum(matrix.nbytes for matrix in matrices.values())
        about = {"checkpoint": whole.name, "seconds": self._before_s + began - self._begun_at}

        def before(operation: str) -> None:
            for hook in parts.hooks:
                hook.before_write(step, operation)

        def write() -> None:
            self._remove_others(step)
            if wanted > (free := shutil.disk_usage(self._folder).free):
                raise OSError(f"{size(free)} are free")
            write_kept(self._path(step), position, matrices, about, before, self.moved)

        try:
            parts.call("checkpoint", step, write)
        except OSError as error:
            self._has_failed = True
            why = told_of_system(error) if error.errno else str(error)
            then = "goes on from what was kept before" if self._kept_step == step else "begins the step again"
            parts.warn(
                f"{self._folder}: what is done of step {step} ({size(wanted)}) could not be kept: {why}. A "
                f"run that is resumed {then}"
            )
        else:
            self._kept_step = step
            if self.stops:
                parts.emit(Notice(kind="info", text=f"stopped in step {step}, {_told(position)}"))
        self._kept_at = self._clock()
        self._took_s = self._kept_at - began

    def saved(self, step: int) -> None:
        """Hear that the checkpoint of a step was written: what is kept of those before is superfluous."""
        self._kept_at = self._clock()
        self._remove_others(step)

    def _path(self, step: int) -> Path:
        return self._folder / f"unfinished-{step:08d}.npz"

    def _remove_others(self, step: int) -> None:
        """Delete what is kept of other steps, and what killed processes have left half written."""
        for path in (*self._folder.glob("unfinished-*.npz"), *self._folder.glob(".unfinished-*.partial")):
            if path != self._path(step):
                path.unlink(missing_ok=True)


def _told(position: StepPosition) -> str:
    if not position.columns:
        return f"of whose {position.num_passes} parts {position.number} are done"
    done = sum(position.columns)
    return f"in pass {position.number + 1} of {position.num_passes}, where {done:,} columns are done"
