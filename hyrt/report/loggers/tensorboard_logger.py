"""A run for TensorBoard, in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyrt.report.loggers.logger import LoggedRun

FOLDER = "tensorboard"


class TensorboardLogger:
    """Writes scalars over the steps of a run into files of events."""

    _writer: Any

    def start(self, run: LoggedRun, known: str | None) -> None:
        """Begin a file; a resumed run adds one."""
        from tensorboardX import SummaryWriter

        folder = run.folder / FOLDER
        # Its files are named after the second in which they were begun, and one of the same name is lost.
        begun = len(list(folder.iterdir())) if folder.exists() else 0
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{begun}")

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.close()
