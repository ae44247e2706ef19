"""Protocol of experiment loggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Description of a run for loggers."""

    name: str
    folder: Path
    """Folder of the run, in which a logger may create files."""
    settings: Mapping[str, Any]
    """Values by path, such as `train.lr`."""


class Logger(Protocol):
    """Logger of a run. All calls are made by one thread, and an error disables only this logger."""

    def start(self, run: LoggedRun, known: str | None) -> str | None:
        """Start or resume a run.

        Parameters
        ----------
        run
            The run.
        known
            Result of `start` for the original run if it is resumed, otherwise None.

        Returns
        -------
        The logger's identifier of the run, with which the run is resumed; None if no identifier is needed.
        """

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        """Log metrics, named with their group and a slash (`val/accuracy`).

        Parameters
        ----------
        metrics
            Values by name.
        step
            Number of completed steps of the run.
        epoch
            The epoch, from 1; None if the metrics do not belong to an epoch.
        """

    def end(self, status: str) -> None:
        """Finish a run with status `finished`, `early-stopped`, `interrupted` or `failed`."""
