"""Training session of one process: run folder, display, signals, training, and records at the end."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from hyrt import __version__
from hyrt.config import Config
from hyrt.errors import HyrtError, StallError, describe_error
from hyrt.graph.graph import Graph
from hyrt.predict.predict_run import predict_run
from hyrt.report.loggers.logger import RunLoggers
from hyrt.report.printed_lines import quote_path
from hyrt.report.progress import Progress
from hyrt.report.run_folder import RunFolder
from hyrt.report.run_process import changed_versions
from hyrt.runtime.shutdown import StopSignals
from hyrt.telemetry.events import Event, Notice, PredictionMade, RunEnded, RunStarted
from hyrt.telemetry.hooks import Hook
from hyrt.telemetry.run_hooks import hooks_from_environment
from hyrt.training.build_run import ALONE, DistributedRunConfig, Predict, build_run
from hyrt.training.checkpoint import Checkpoint, has_checkpoint, load_newest_checkpoint
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training


class StopConsensus(Protocol):
    """Source of the signal that all ranks have agreed on."""

    @property
    def agreed_signal(self) -> int:
        """Number of the signal after which all ranks stop, or 0."""
        ...


class CoordinatedStop:
    """Stop signals for a distributed run, in which all ranks stop together.

    Parameters
    ----------
    signals
        Stop signals of this process.
    agreement
        Agreement of all ranks.
    """

    def __init__(self, signals: StopSignals, agreement: StopConsensus) -> None:
        self._signals = signals
        self._agreement = agreement

    @property
    def requested(self) -> bool:
        """Whether all ranks stop."""
        return self._agreement.agreed_signal != 0

    @property
    def exit_code(self) -> int:
        """Exit code 128 + the number of the signal, equal on all ranks."""
        return 128 + self._agreement.agreed_signal

    def defer_to_step_end(self, announce: Callable[[str], None], exit_message: Callable[[], str]) -> None:
        """Call `StopSignals.defer_to_step_end` for the signals of this process."""
        self._signals.defer_to_step_end(announce, exit_message)


def write_report(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Write the report of the run so far. If this fails, warn and return None, because the run
    has succeeded.
    """
    from hyrt.report.html.chart import write_page
    from hyrt.report.html.page import REPORT, run_page
    from hyrt.report.run_record import read_run

    path = folder / REPORT
    try:
        hint = f"Free space, then write it with: hyrt report {quote_path(folder)}"
        write_page(path, run_page(read_run(folder)), hint)
    except Exception as error:
        warn(f"the report could not be written: {describe_error(error)}")
        return None
    return path


def record_failure(
    folder: RunFolder, error: BaseException, known: Mapping[str, Any], warn: Callable[[str], None]
) -> None:
    """Write the summary and the report of a failed run.

    Parameters
    ----------
    folder
        The run folder.
    error
        Cause of the failure, which gets a note if the records cannot be written.
    known
        Further known facts about the run, for the summary.
    warn
        Called with the reason if the report cannot be written.
    """
    try:
        summary = {"error": f"{type(error).__name__}: {error}", **known}
        folder.handle(RunEnded(status="failed", summary=summary))
        write_report(folder.path, warn)
    except HyrtError as second:
        # A failure due to a full disk cannot be recorded. Only the first error is important.
        error.add_note(f"the failure could not be recorded: {second}")


def print_resume_command(folder: RunFolder, series_folder: Path | None = None) -> None:
    """Print how to resume a failed run, if it has a checkpoint; arguments are as for `resume_message`."""
    if is_resumable(folder):
        with contextlib.suppress(OSError):
            print(resume_message(folder, series_folder), file=sys.stderr)


def resume_message(folder: RunFolder, series_folder: Path | None = None) -> str:
    """Return a message that explains how to resume a run.

    Parameters
    ----------
    folder
        The run folder.
    series_folder
        Folder of a series of runs that includes this run and is resumed instead, or None.
    """
    command = f"hyrt run --resume {quote_path(series_folder or folder.path)}"
    if series_folder is None and not is_resumable(folder):
        return f"The run has no checkpoint yet. To restart it from step 0: {command}"
    return f"Resume with: {command}"


def is_resumable(folder: RunFolder) -> bool:
    """Return whether the run has a checkpoint."""
    try:
        return has_checkpoint(folder.checkpoints)
    except OSError:
        return False


# Seconds after a stall before the process is killed. Joining threads and closing devices takes less time,
# unless they hang.
_KILL_DELAY_S = 4.0
# Seconds in which loggers must finish before the process exits.
_LOGGER_CLOSE_S = 1.0


def find_newest_checkpoint(folder: RunFolder, progress: Progress) -> Checkpoint | None:
    """Return the checkpoint to resume from; None if the run must start from the beginning.

    Raises
    ------
    CheckpointError
        If there are checkpoints, but all of them are damaged.
    """
    if not has_checkpoint(folder.checkpoints):
        progress.handle(Notice(kind="info", text="the run has no checkpoint yet: restarting from step 0"))
        return None

    def warn(text: str) -> None:
        progress.handle(Notice(kind="warning", text=text))

    if changed := changed_versions(folder.path):
        warn(
            f"the run was started with {changed}, so its results will not be bit-identical to "
            "an uninterrupted run: install the former version to avoid this"
        )
    return load_newest_checkpoint(folder.checkpoints, warn)


@dataclass
class RunSession:
    """Training session in a run folder."""

    config: Config
    graph: Graph
    folder: RunFolder
    progress: Progress
    signals: StopSignals | CoordinatedStop
    series_folder: Path | None = None
    """Folder in the resume command: the folder of the series of runs, or None for the run folder."""
    prepared: PreparedRun | None = None
    """Model and sampler of the run, if they have already been built to choose the devices."""
    shared: DistributedRunConfig = ALONE
    """Role of this process in a run of several ranks."""
    predict: Predict | None = predict_run
    """Function that predicts the run; None for no prediction."""
    hooks: Sequence[Hook] = ()
    """Hooks in addition to those that environment variables request."""
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
            Whether the folder was created for this call; if so, it may be removed.

        Returns
        -------
        Exit code: 0, or that of the received signal (`StopSignals.exit_code`).

        Raises
        ------
        HyrtError
            After summary.json has the status `failed`. A run that is rejected before its first step leaves
            the folder unchanged; a new folder is removed.
        """
        self._checkpoint, self._is_new = checkpoint, is_new
        with RunLoggers.from_config(self.config, self.folder.path, self._warn) as self._loggers:
            return self._train()

    def _train(self) -> int:
        path = self.folder.path
        try:
            if self.graph.links is not None:
                self.folder.store_links(self.graph.links.split, self.graph.vertices.vertex_ids)
            training = self._training = Training(
                build_run(
                    self.config,
                    self.graph,
                    emit=self._handle,
                    checkpoints=self.folder.checkpoints,
                    should_stop=lambda: self.signals.requested,
                    on_stall=self._write_stacks,
                    predict=self.predict,
                    hooks=[*hooks_from_environment(size=self.shared.part.num_processes), *self.hooks],
                    shared=self.shared,
                    prepared=self.prepared,
                )
            )
            if self._checkpoint is not None:
                training.resume(self._checkpoint)
            # Only now: building the training may take long (GraphSAINT's counts), and has no step that could
            # end.
            self.signals.defer_to_step_end(self._notice, self._exit_message)
            status = training.run().status
        except BaseException as error:
            self._cancel_kill_timer()
            self._fail(error)
            if self._kill_timer is not None:
                stalled = StallError(f"{error}. The stacks of all threads: {path / 'stacks.txt'}")
                for note in getattr(error, "__notes__", ()):
                    stalled.add_note(note)
                raise stalled from error
            raise
        self._has_ended = True
        report = write_report(self.folder.path, self._warn)
        if status == "interrupted":
            self.progress.print_line(self._resume_message())
            return self.signals.exit_code
        self.progress.print_line(
            f"run folder {quote_path(path)}" + (f" · report {quote_path(report)}" if report else "")
        )
        return 0

    def _handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            if not self._is_new:
                # Only now: until here, the run may be rejected, which must leave its folder unchanged.
                self.folder.truncate_metrics(0 if self._checkpoint is None else self._checkpoint.step)
                self.folder.set_config(self.config)
            self._notice(f"hyrt {__version__} · run {quote_path(self.folder.path)}")
        elif not isinstance(event, Notice | PredictionMade):
            self._has_trained = True
        self.folder.handle(event)
        if self._loggers is not None:
            self._loggers.handle(event)
        self.progress.handle(event)

    def _notice(self, text: str, kind: str = "info") -> None:
        self.progress.handle(Notice(kind=kind, text=text))

    def _resume_message(self) -> str:
        return resume_message(self.folder, self.series_folder)

    def _warn(self, text: str) -> None:
        self._notice(text, "warning")

    def _exit_message(self) -> str:
        if self._training is not None:
            self._training.leave()
        if self._has_ended:
            return (
                "exiting before the report is written; write it with: hyrt report "
                f"{quote_path(self.folder.path)}. {self._resume_message()}"
            )
        return f"exiting before the step has ended. {self._resume_message()}"

    def _write_stacks(self, stacks: str) -> None:
        # If the main thread hangs, it cannot raise the failure, and this timer ends the process.
        self._kill_timer = threading.Timer(_KILL_DELAY_S, self._exit_stalled, [stacks.partition("\n")[0]])
        self._kill_timer.daemon = True
        self._kill_timer.start()
        (self.folder.path / "stacks.txt").write_text(stacks, encoding="utf-8")

    def _cancel_kill_timer(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer.join()

    def _exit_stalled(self, stalled: str) -> NoReturn:
        """Record a failure and exit, because the main thread hangs."""
        error = StallError(stalled)
        path = self.folder.path / "stacks.txt"
        print(f"error: {stalled}. The stacks of all threads: {path}", file=sys.stderr, flush=True)
        try:
            # Write the trace before the report, which links to it.
            if self._training is not None:
                self._training.end_failed(error)
            self._fail(error)
            if self._loggers is not None:
                self._loggers.close("failed", _LOGGER_CLOSE_S)
            for note in getattr(error, "__notes__", ()):
                print(f"warning: {note}", file=sys.stderr, flush=True)
        finally:
            os._exit(StallError.exit_code)

    def _fail(self, error: BaseException) -> None:
        """Record the failure, or leave the folder unchanged if the run was rejected before its first step."""
        refused = isinstance(error, HyrtError) and error.exit_code == 2
        if refused and not self._has_trained:
            if self._is_new:
                self.folder.discard()
            return
        known = {} if self._training is None else self._training.summary_of_failure
        record_failure(self.folder, error, known, self._warn)
        print_resume_command(self.folder, self.series_folder)
