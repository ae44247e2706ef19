"""A run's events for TensorBoard, as scalars over its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from hyrt.errors import ConfigError
from hyrt.observe.events import Balanced, EpochEnded, Evaluated, Event, StepGroup
from hyrt.report.records.write_errors import explained

FOLDER = "tensorboard"


def check_tensorboard() -> None:
    """Whether scalars can be written.

    Raises
    ------
    ConfigError
        If the package that writes them is not installed.
    """
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'--tensorboard needs tensorboardX: pip install "hyrt[tensorboard]" ({error})'
        ) from error


class TensorboardLog:
    """Writes scalars while a run goes on; a context manager.

    Parameters
    ----------
    folder
        The folder of the event files; made when missing. A resumed run adds a file to it.

    Raises
    ------
    ConfigError
        If the package that writes them is not installed.
    """

    def __init__(self, folder: Path) -> None:
        check_tensorboard()
        from tensorboardX import SummaryWriter

        self._folder = folder
        with self._explained():
            # Its files are named after the second in which they were begun, and one of the same name is lost.
            begun = len(list(folder.iterdir())) if folder.exists() else 0
            self._writer: Any = SummaryWriter(str(folder), filename_suffix=f".{begun}")

    def handle(self, event: Event) -> None:
        """Write an event's scalars.

        Raises
        ------
        HyrtError
            If the folder cannot be written.
        """
        with self._explained():
            for name, value in scalars(event):
                self._writer.add_scalar(name, value, getattr(event, "step", None))
            if isinstance(event, EpochEnded):
                self._writer.flush()

    def close(self) -> None:
        """Write what is still buffered."""
        with self._explained():
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self._folder, "Free space, or omit --tensorboard")


def scalars(event: Event) -> Iterator[tuple[str, float]]:
    """Names and values of an event's scalars; TensorBoard groups them by what stands before the slash."""
    match event:
        case StepGroup():
            yield "train/loss", event.loss
            for name, value in event.training_metrics.items():
                yield f"train/{name}", value
            yield "train/lr", event.lr
            yield "speed/mteps", event.mteps
            yield "speed/step_s", event.step_s
            yield "memory/resident_bytes", float(event.memory_bytes)
            for group, values in (
                ("stage_s", event.stage_s),
                ("waiting_s", event.blocked_s),
                ("queued", event.queued),
                ("busy_s", event.busy_s),
                ("split", event.split),
                ("threads", event.threads),
            ):
                for name, value in values.items():
                    yield f"{group}/{name}", float(value)
        case Evaluated():
            for split, metrics in event.metrics.items():
                for name, value in metrics.items():
                    yield f"{split}/{name}", value
        case EpochEnded():
            yield "epoch/seconds", event.seconds
            yield "epoch/loss", event.loss
            if event.predicted_s is not None:
                yield "epoch/predicted_s", event.predicted_s
        case Balanced() if event.expected_s is not None:
            yield "balance/expected_s", event.expected_s
