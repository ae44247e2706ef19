"""One run's trace: from its start to the file in the run folder."""

from __future__ import annotations

import gzip
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from hyrt import __version__
from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.workers import Workers
from hyrt.observe.events import Emit, Notice
from hyrt.observe.trace.file import left_out, trace_json
from hyrt.observe.trace.trace import Trace
from hyrt.pipeline.stages import Stages
from hyrt.training.traced_stages import TracedStages, listen, traced_emit, watched

# A seventh of the size already, in a few hundredths of a second for each ten thousand events.
_COMPRESSION = 1


class TracedRun:
    """Gives a run traced parts in place of its own, and writes what they noted when it has ended.

    Parameters
    ----------
    config
        Of the run.
    folder
        Where the trace goes.

    Raises
    ------
    ConfigError
        If there is no folder.
    """

    def __init__(self, config: Config, folder: Path | None) -> None:
        if folder is None:
            raise ConfigError(
                "runtime.trace: there is no folder to write it to: give one (hyrt.train(..., folder=...))"
            )
        self.trace = Trace(config.runtime.trace_events)
        self._folder = folder
        self._timeout_s = config.runtime.stall_timeout_s
        self._trainers: list[str] = []
        self._first_step = 0

    def hearing(self, emit: Emit) -> Emit:
        """Listen to events on their way."""
        return traced_emit(emit, self.trace)

    def team(self, count: int, name: str) -> Workers:
        """A stage's threads."""
        workers = Workers(count, name)
        workers.watch = partial(watched, self.trace)
        return workers

    def stages(self, stages: Stages, first_step: int) -> TracedStages:
        """What the run drives from a step on; its devices are asked for what their queues run."""
        self._trainers = [trainer.name for trainer in stages.trainers]
        self._first_step = first_step
        listen(stages.trainers, self.trace, self._timeout_s)
        return TracedStages(stages, self.trace)

    def slice(self, name: str, step: int) -> AbstractContextManager[None]:
        """What the calling thread does in a `with` block."""
        return self.trace.track().begin(self.trace.number(name), step)

    @property
    def path(self) -> Path:
        """trace.json.gz; of a run that goes on, trace-from-<step>.json.gz, so that what was before stays."""
        name = f"trace-from-{self._first_step}.json.gz" if self._first_step else "trace.json.gz"
        return self._folder / name

    def saved(self) -> Notice | None:
        """Write the file, unless nothing was done; what to say of it, which is a warning where that fails."""
        if self.trace.is_empty:
            return None
        try:
            self._write()
        except OSError as error:
            return Notice(kind="warning", text=self._not_written(error))
        losses = left_out(self.trace)
        lost = ""
        if losses:
            lost = (
                f"; {sum(losses.values()):,} early events are left out of it (runtime.trace_events={self.trace.limit} "
                "a track)"
            )
        return Notice(kind="info", text=f"trace {self.path}, for ui.perfetto.dev{lost}")

    def save_after(self, error: BaseException) -> None:
        """Write the file after a failure, unless nothing had begun; a failure of that is a note to the first."""
        if self.trace.is_empty:
            return
        try:
            self._write()
        except OSError as second:
            error.add_note(self._not_written(second))

    def _write(self) -> None:
        about = {"hyrt": __version__, "first_step": self._first_step}
        text = trace_json(self.trace, self._trainers, about)
        write_atomically(self.path, gzip.compress(text, _COMPRESSION, mtime=0))

    def _not_written(self, error: OSError) -> str:
        return f"{self.path}: the trace cannot be written: {error.strerror or error}. Everything else is as it was"
