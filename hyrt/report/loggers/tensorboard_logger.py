"""TensorBoard logger, which writes to the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyrt.report.loggers.logger import LoggedRun

FOLDER = "tensorboard"


class TensorboardLogger:
    """Logger of metrics as TensorBoard scalars by step."""

    _writer: Any

    def start(self, run: LoggedRun, previous_id: str | None) -> None:
        """Create an event file; a resumed run adds another event file."""
        from tensorboardX import SummaryWriter

        folder = run.folder / FOLDER
        # The name of an event file has the current second. Without a suffix, another file could be
        # overwritten.
        num_files = len(list(folder.iterdir())) if folder.exists() else 0
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{num_files}")

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.close()
