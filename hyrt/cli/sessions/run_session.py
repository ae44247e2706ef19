"""Training session of one process: run folder, display, signals and training."""

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

# Delay after a stall before the process is killed: joining threads and closing devices takes less, unless
# they hang.
_KILL_DELAY_S = 4.0
# Time limit for loggers to finish before the process exits.
_LOGGER_CLOSE_S = 1.0


def newest_checkpoint(folder: RunFolder, progress: Progress) -> Checkpoint | None:
    """Return the checkpoint to resume from; None if the run has to start over.

    Raises
    ------
    CheckpointError
        If there are checkpoints, but all are damaged.
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
    """Training session in a run folder."""

    config: Config
    graph: Graph
    folder: RunFolder
    progress: Progress
    signals: StopSignals | AgreedStop
    resumes: Path | None = None
    """Folder to name in the resume command: the folder of the run's series, or None for the run folder."""
    prepared: PreparedRun | None = None
    """Model and sampler of the run, if the choice of devices has already built them."""
    shared: SharedRun = ALONE
    """Part of this process in a run of several ranks."""
    predict: Predict | None = predict_run
    """Predicts the run."""
    hooks: Sequence[Hook] = ()
    """Further hooks besides the hooks requested by environment variables."""
    _loggers: RunLoggers | None = field(default=None, init=False)
    _checkpoint: Checkpoint | None = field(default=None, init=False)
    _is_new: bool = field(default=True, init=False)
    _has_trained: bool = field(default=False, init=False)
    _has_ended: bool = field(default=False, init=False)
    _kill_timer: threading.Timer | None = field(default=None, init=False)
    _training: Training | None = field(default=None, init=False)

    def run(self, checkpoint: Checkpoint | None, *, is_new: bool) -> int:
        """Train to the end or until a signal is received.

        Parameters
        ----------
        checkpoint
            Checkpoint to continue from; None to start from scratch.
        is_new
            Whether the folder was created for this call; only then may it be removed.

        Returns
        -------
        Exit code: 0, or that of the received signal (`StopSignals.exit_code`).

        Raises
        ------
        HyrtError
            After summary.json has the status `failed`. A run that is refused before its first step leaves the
            folder unchanged; a new folder is removed.
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
            # Not earlier: building the training may take long (GraphSAINT's counts), with no step that could
            # end.
            self.signals.wait_for_step(self._notice, self._exit_message)
            status = training.run().status
        except BaseException as error:
            self._cancel_kill_timer()
            self._fail(error)
            if self._kill_timer is not None:
                stalled = Stalled(f"{error}. The stacks of all threads: {path / 'stacks.txt'}")
                for note in getattr(error, "__notes__", ()):
                    stalled.add_note(note)
                raise stalled from error
            raise
        self._has_ended = True
        report = write_report(self.folder.path, self._warn)
        if status == "interrupted":
            self.progress.say(self._resume_message())
            return self.signals.exit_code
        self.progress.say(
            f"run folder {shell_word(path)}" + (f" · report {shell_word(report)}" if report else "")
        )
        return 0

    def _handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            if not self._is_new:
                # Not earlier: until here the run may be refused, which must leave its folder unchanged.
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

    def _resume_message(self) -> str:
        return how_to_go_on(self.folder, self.resumes)

    def _warn(self, text: str) -> None:
        self._notice(text, "warning")

    def _exit_message(self) -> str:
        if self._training is not None:
            self._training.leave()
        if self._has_ended:
            return (
                "exiting before the report is written; write it with: hyrt report "
                f"{shell_word(self.folder.path)}. {self._resume_message()}"
            )
        return f"exiting before the step has ended. {self._resume_message()}"

    def _write_stacks(self, stacks: str) -> None:
        # If the main thread hangs, it cannot raise the failure; this timer then ends the process.
        self._kill_timer = threading.Timer(_KILL_DELAY_S, self._exit_stalled, [stacks.partition("\n")[0]])
        self._kill_timer.daemon = True
        self._kill_timer.start()
        (self.folder.path / "stacks.txt").write_text(stacks, encoding="utf-8")

    def _cancel_kill_timer(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer.join()

    def _exit_stalled(self, stalled: str) -> NoReturn:
        """Record a failure and exit while the main thread hangs."""
        error = Stalled(stalled)
        path = self.folder.path / "stacks.txt"
        print(f"error: {stalled}. The stacks of all threads: {path}", file=sys.stderr, flush=True)
        try:
            # Before the report, which links to the trace.
            if self._training is not None:
                self._training.end_failed(error)
            self._fail(error)
            if self._loggers is not None:
                self._loggers.close("failed", _LOGGER_CLOSE_S)
            for note in getattr(error, "__notes__", ()):
                print(f"warning: {note}", file=sys.stderr, flush=True)
        finally:
            os._exit(Stalled.exit_code)

    def _fail(self, error: BaseException) -> None:
        """Record the failure; or leave the folder unchanged if the run was refused before its first step."""
        refused = isinstance(error, HyrtError) and error.exit_code == 2
        if refused and not self._has_trained:
            if self._is_new:
                self.folder.discard()
            return
        known = {} if self._training is None else self._training.summary_of_failure
        record_failure(self.folder, error, known, self._warn)
        tell_how_to_go_on(self.folder, self.resumes)
