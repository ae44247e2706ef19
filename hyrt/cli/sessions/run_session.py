"""One process's work on a run: its folder, its display, its signals, and the training between them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from hyrt import __version__
from hyrt.cli.sessions.agreed_stop import AgreedStop
from hyrt.cli.sessions.run_records import how_to_go_on, record_failure, tell_how_to_go_on, write_report
from hyrt.config import Config
from hyrt.errors import HyrtError, Stalled
from hyrt.graph.graph import Graph
from hyrt.machine.this_process.stop_signals import StopSignals
from hyrt.observe.events import Event, Notice, Predicted, RunStarted
from hyrt.observe.hook import Hook
from hyrt.observe.wanted_hooks import hooks_of_environment
from hyrt.predict.this_run import predict_run
from hyrt.report.loggers.run_loggers import RunLoggers
from hyrt.report.records.environment import changed_versions
from hyrt.report.records.run_folder import RunFolder
from hyrt.report.terminal.printed_lines import shell_word
from hyrt.report.terminal.progress import Progress
from hyrt.training.checkpoint import Checkpoint, has_checkpoint, load_newest_checkpoint
from hyrt.training.compose import Predict, compose_run
from hyrt.training.given.shared_run import ALONE, SharedRun
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training

# From when a stall is noticed: joining threads and closing devices takes less, where none of them hangs.
_LAST_RESORT_S = 4.0
# How long loggers may take to end a run whose process is ended then.
_LAST_WORDS_S = 1.0


def newest_checkpoint(folder: RunFolder, progress: Progress) -> Checkpoint | None:
    """Where a run goes on; None where it has to start over.

    Raises
    ------
    CheckpointError
        If there are checkpoints, but none is whole.
    """
    if not has_checkpoint(folder.checkpoints):
        progress.handle(Notice(kind="info", text="the run has no checkpoint yet: starting again from step 0"))
        return None

    def warn(text: str) -> None:
        progress.handle(Notice(kind="warning", text=text))

    if changed := changed_versions(folder.path):
        warn(
            f"the run was started with {changed}: it goes on, but not bit-equal to a run that was never "
            "stopped; install the former to have that"
        )
    return load_newest_checkpoint(folder.checkpoints, warn)


@dataclass
class Session:
    """Trains in a run folder."""

    config: Config
    graph: Graph
    folder: RunFolder
    progress: Progress
    signals: StopSignals | AgreedStop
    resumes: Path | None = None
    """The folder to name in what resumes it: that of its series; None for its own."""
    prepared: PreparedRun | None = None
    """The run's model and sampler, where choosing the devices has already asked for them."""
    shared: SharedRun = ALONE
    """This process's part of the run, where several train together."""
    predict: Predict | None = predict_run
    """Predicts the run."""
    hooks: Sequence[Hook] = ()
    """Watch the run, beside those that the environment wants."""
    _loggers: RunLoggers | None = field(default=None, init=False)
    _checkpoint: Checkpoint | None = field(default=None, init=False)
    _is_new: bool = field(default=True, init=False)
    _has_trained: bool = field(default=False, init=False)
    _has_ended: bool = field(default=False, init=False)
    _last_resort: threading.Timer | None = field(default=None, init=False)
    _training: Training | None = field(default=None, init=False)

    def run(self, checkpoint: Checkpoint | None, *, is_new: bool) -> int:
        """Train to the end, or until a signal comes.

        Parameters
        ----------
        checkpoint
            The checkpoint to continue from; None to start.
        is_new
            Whether the folder was made for this call: only then may it be removed.

        Returns
        -------
        The exit code: 0, or that of the signal that has interrupted it (`StopSignals.exit_code`).

        Raises
        ------
        HyrtError
            After summary.json says `failed`. A run that is refused before its first step leaves the folder as
            it was: a new one none.
        """
        self._checkpoint, self._is_new = checkpoint, is_new
        with RunLoggers.of(self.config, self.folder.path, self._warn) as self._loggers:
            return self._train()

    def _train(self) -> int:
        path = self.folder.path
        try:
            if self.graph.links is not None:
                self.folder.keep_links(self.graph.links.split)
            training = self._training = Training(
                compose_run(
                    self.config,
                    self.graph,
                    emit=self._handle,
                    checkpoints=self.folder.checkpoints,
                    should_stop=lambda: self.signals.requested,
                    on_stall=self._write_stacks,
                    predict=self.predict,
                    hooks=[*hooks_of_environment(size=self.shared.part.num_processes), *self.hooks],
                    shared=self.shared,
                    prepared=self.prepared,
                )
            )
            if self._checkpoint is not None:
                training.resume(self._checkpoint)
            # Not before: making the training may take long (GraphSAINT's counts), and then no step would end.
            self.signals.wait_for_step(self._notice, self._last_words)
            status = training.run().status
        except BaseException as error:
            self._stop_last_resort()
            self._fail(error)
            if self._last_resort is not None:
                stalled = Stalled(f"{error}. The stacks of all threads: {path / 'stacks.txt'}")
                for note in getattr(error, "__notes__", ()):
                    stalled.add_note(note)
                raise stalled from error
            raise
        self._has_ended = True
        written = write_report(self.folder.path, self._warn)
        if status == "interrupted":
            self.progress.say(self._how_to_go_on())
            return self.signals.exit_code
        self.progress.say(
            f"run folder {shell_word(path)}" + (f" · report {shell_word(written)}" if written else "")
        )
        return 0

    def _handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            if not self._is_new:
                # Not before: until here the run may be refused, and then its folder stays as it was.
                self.folder.truncate_metrics(0 if self._checkpoint is None else self._checkpoint.step)
                self.folder.set_config(self.config)
            self._notice(f"hyrt {__version__} · run {shell_word(self.folder.path)}")
        elif not isinstance(event, Notice | Predicted):
            self._has_trained = True
        self.folder.handle(event)
        if self._loggers is not None:
            self._loggers.handle(event)
        self.progress.handle(event)

    def _notice(self, text: str, kind: str = "info") -> None:
        self.progress.handle(Notice(kind=kind, text=text))

    def _how_to_go_on(self) -> str:
        return how_to_go_on(self.folder, self.resumes)

    def _warn(self, text: str) -> None:
        self._notice(text, "warning")

    def _last_words(self) -> str:
        if self._training is not None:
            self._training.leave()
        if self._has_ended:
            return (
                "exiting before the report is written; write it with: hyrt report "
                f"{shell_word(self.folder.path)}. {self._how_to_go_on()}"
            )
        return f"exiting before the step has ended. {self._how_to_go_on()}"

    def _write_stacks(self, stacks: str) -> None:
        # Where the main thread is what hangs, nobody hears of the failure: this one ends the process then.
        self._last_resort = threading.Timer(_LAST_RESORT_S, self._leave, [stacks.partition("\n")[0]])
        self._last_resort.daemon = True
        self._last_resort.start()
        (self.folder.path / "stacks.txt").write_text(stacks, encoding="utf-8")

    def _stop_last_resort(self) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
            self._last_resort.join()

    def _leave(self, stalled: str) -> NoReturn:
        """Record a failure and end the process from beside a main thread that does not come back."""
        error = Stalled(stalled)
        path = self.folder.path / "stacks.txt"
        print(f"error: {stalled}. The stacks of all threads: {path}", file=sys.stderr, flush=True)
        try:
            # Before the report, which links it.
            if self._training is not None:
                self._training.end_failed(error)
            self._fail(error)
            if self._loggers is not None:
                self._loggers.close("failed", _LAST_WORDS_S)
            for note in getattr(error, "__notes__", ()):
                print(f"warning: {note}", file=sys.stderr, flush=True)
        finally:
            os._exit(Stalled.exit_code)

    def _fail(self, error: BaseException) -> None:
        """Leave a record; or what was there before, where the run was refused before its first step."""
        refused = isinstance(error, HyrtError) and error.exit_code == 2
        if refused and not self._has_trained:
            if self._is_new:
                self.folder.discard()
            return
        known = {} if self._training is None else self._training.summary_of_failure
        record_failure(self.folder, error, known, self._warn)
        tell_how_to_go_on(self.folder, self.resumes)
