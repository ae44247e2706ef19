"""One process's work on a run: its folder, its display, its signals, and the training between them."""

from __future__ import annotations

import contextlib
import shutil
import sys

from hyrt import __version__
from hyrt.config import Config
from hyrt.errors import HyrtError, Stalled
from hyrt.graph.graph import Graph
from hyrt.report.progress import Progress
from hyrt.report.run_folder import RunFolder
from hyrt.runtime.checkpoint import Checkpoint, has_checkpoint, load_newest_checkpoint
from hyrt.runtime.events import Event, Notice, RunEnded, RunStarted
from hyrt.runtime.train import Training
from hyrt.stop_signals import StopSignals


def newest_checkpoint(folder: RunFolder, progress: Progress) -> Checkpoint | None:
    """Where a run goes on, and its metrics cut back to there; None where it has to start over.

    Raises
    ------
    CheckpointError
        If there are checkpoints, but none is whole.

    """
    if not has_checkpoint(folder.checkpoints):
        folder.truncate_metrics(0)
        progress.handle(Notice(kind="info", text="the run has no checkpoint yet: starting over from step 0"))
        return None
    checkpoint = load_newest_checkpoint(
        folder.checkpoints, lambda text: progress.handle(Notice(kind="warning", text=text))
    )
    folder.truncate_metrics(checkpoint.step)
    return checkpoint


class Session:
    """Trains in a run folder.

    Parameters
    ----------
    config
        All settings.
    graph
        Opened and normalised.
    folder
        Takes the records.
    progress
        Shows the run.
    signals
        Ask it to stop.

    """

    def __init__(
        self, config: Config, graph: Graph, folder: RunFolder, progress: Progress, signals: StopSignals
    ) -> None:
        self._config = config
        self._graph = graph
        self._folder = folder
        self._progress = progress
        self._signals = signals

    def run(self, checkpoint: Checkpoint | None, *, is_new: bool) -> int:
        """Train to the end, or until a signal comes.

        Parameters
        ----------
        checkpoint
            Where to go on.
        is_new
            Whether the folder was made for this call: only then may it be removed.

        Returns
        -------
        The exit code: 0, or 130 (SIGINT) or 143 (SIGTERM) when interrupted.

        Raises
        ------
        HyrtError
            After summary.json says `failed`; a new run that could not begin leaves no folder.

        """
        path = self._folder.path
        self._signals.wait_for_step(self._announce_stop, self._last_words)
        try:
            training = Training(
                self._config,
                self._graph,
                emit=self._handle,
                checkpoints=self._folder.checkpoints,
                should_stop=lambda: self._signals.requested,
                on_stall=self._write_stacks,
            )
            if checkpoint is not None:
                training.resume(checkpoint)
            status = training.run().status
        except BaseException as error:
            self._fail(error, is_new)
            if isinstance(error, Stalled):
                raise Stalled(f"{error}. The stacks of all threads: {path / 'stacks.txt'}") from error
            raise
        if status == "interrupted":
            self._progress.say(self._how_to_go_on())
            return self._signals.exit_code
        self._progress.say(f"run folder {path}")
        return 0

    def _handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            title = f"hyrt {__version__} · run {self._folder.path}"
            self._progress.handle(Notice(kind="info", text=title))
        self._folder.handle(event)
        self._progress.handle(event)

    def _announce_stop(self, text: str) -> None:
        self._progress.handle(Notice(kind="info", text=text))

    def _how_to_go_on(self) -> str:
        return f"Continue with: hyrt run --resume {self._folder.path}"

    def _last_words(self) -> str:
        return f"the step has not ended in time: leaving. {self._how_to_go_on()}"

    def _write_stacks(self, stacks: str) -> None:
        (self._folder.path / "stacks.txt").write_text(stacks, encoding="utf-8")

    def _fail(self, error: BaseException, is_new: bool) -> None:
        """Leave a record; or nothing, where a new run was refused before its first step."""
        refused = isinstance(error, HyrtError) and error.exit_code == 2
        path = self._folder.path
        if is_new and refused and not self._folder.metrics_path.stat().st_size:
            self._folder.close()
            shutil.rmtree(path)
            return
        summary = {"error": f"{type(error).__name__}: {error}"}
        # On a full disk this fails too; what the user needs to know is the first error.
        with contextlib.suppress(HyrtError):
            self._folder.handle(RunEnded(status="failed", summary=summary))
        with contextlib.suppress(OSError):
            if has_checkpoint(self._folder.checkpoints):
                print(self._how_to_go_on(), file=sys.stderr)
