"""What a logger is: the one thing that a program that collects runs has to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run as loggers hear of it."""

    name: str
    folder: Path
    """The folder of the run, where a logger may put files of its own."""
    settings: Mapping[str, Any]
    """Values by path, such as `train.lr`."""


class Logger(Protocol):
    """Takes what a run tells. All calls come from one thread, and what one raises ends the logger alone."""

    def start(self, run: LoggedRun, known: str | None) -> str | None:
        """Begin a run, or go on with one.

        Parameters
        ----------
        run
            The run.
        known
            What this returned when the run was begun, where it is resumed; else None.

        Returns
        -------
        The logger's own name for the run, by which it goes on with it; None where it needs none.
        """

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        """Take metrics, named with a slash after their group (`val/accuracy`).

        Parameters
        ----------
        metrics
            Values by name.
        step
            Steps done in the whole run.
        epoch
            The epoch, from 1; None of what belongs to none.
        """

    def end(self, status: str) -> None:
        """End a run, which is `finished`, `early-stopped`, `interrupted` or `failed`."""
