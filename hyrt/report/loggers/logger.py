"""Protocol and registry of experiment loggers, and the loggers of a run.

Each logger has its own thread, so that it cannot block or end the run.
"""

from __future__ import annotations

import importlib
import json
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from hyrt.config import Config
from hyrt.config.load import flatten_settings
from hyrt.errors import ConfigError, one_line
from hyrt.runtime.files import write_atomically
from hyrt.telemetry.events import (
    AssignmentChanged,
    EpochEnded,
    EvaluationFinished,
    Event,
    RunEnded,
    RunStarted,
    StepMetrics,
)


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Description of a run for loggers."""

    name: str
    folder: Path
    """Folder of the run, in which a logger may create files."""
    settings: Mapping[str, Any]
    """Settings by key, such as `train.lr`."""


class Logger(Protocol):
    """Logger of a run. All calls come from one thread, and an error disables only this logger."""

    def start(self, run: LoggedRun, previous_id: str | None) -> str | None:
        """Start or resume a run.

        Parameters
        ----------
        run
            New or resumed run.
        previous_id
            Result of `start` for the original run if the run is resumed, otherwise None.

        Returns
        -------
        Identifier with which the logger can resume the run; None if it needs no identifier.
        """

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        """Log metrics, whose names have a group as prefix (`val/accuracy`).

        Parameters
        ----------
        metrics
            Values by name.
        step
            Number of completed steps of the run.
        epoch
            Number of the epoch, from 1; None for metrics that do not belong to an epoch.
        """

    def end(self, status: str) -> None:
        """Finish a run with the status `finished`, `early-stopped`, `interrupted` or `failed`."""


_LOGGERS = {
    "tensorboard": ("tensorboardX", "tensorboard_logger:TensorboardLogger"),
    "mlflow": ("mlflow", "mlflow_logger:MlflowLogger"),
    "wandb": ("wandb", "wandb_logger:WandbLogger"),
}
"""Package and class of each logger by name, which is also the name of the package extra."""


def check_loggers(names: Collection[str]) -> None:
    """Raise ConfigError, with the installation command, if the package of a logger is missing."""
    for name in names:
        package = _LOGGERS[name][0]
        try:
            is_installed = find_spec(package) is not None
        except ValueError:
            is_installed = False  # The module has no import spec.
        if not is_installed:
            raise ConfigError(f'loggers={name} needs {package}: pip install "hyrt[{name}]"')


def create_logger(name: str) -> Logger:
    """Create a logger by name. Errors of its package are passed on."""
    module, _, kind = _LOGGERS[name][1].partition(":")
    logger: Logger = getattr(importlib.import_module(f"hyrt.report.loggers.{module}"), kind)()
    return logger


def event_metrics(event: Event) -> Iterator[tuple[str, float]]:
    """Yield the names (`group/metric`) and values of the metrics in an event."""
    match event:
        case StepMetrics():
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
                    # Some loggers do not accept a colon in a name.
                    yield f"{group}/{name.replace(':', '_')}", float(value)
        case EvaluationFinished():
            for split, metrics in event.metrics.items():
                for name, value in metrics.items():
                    yield f"{split}/{name}", value
        case EpochEnded():
            yield "epoch/seconds", event.seconds
            yield "epoch/loss", event.loss
            if event.predicted_s is not None:
                yield "epoch/predicted_s", event.predicted_s
        case AssignmentChanged() if event.expected_s is not None:
            yield "balance/expected_s", event.expected_s


RUN_IDS_FILE = "loggers.json"
"""File in the run folder with the identifier that each logger has for the run."""
_CLOSE_TIMEOUT_S = 60.0
_MAX_MESSAGE_LENGTH = 200


class RunLoggers:
    """Loggers of a run, to which its events are forwarded; a context manager.

    If a logger fails, `warn` is called on the caller's thread.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: LoggedRun,
        warn: Callable[[str], None],
        create: Callable[[str], Logger] = create_logger,
    ) -> None:
        self._run = run
        self._warn = warn
        run_ids = _RunIds(run.folder / RUN_IDS_FILE)
        self._workers = [_Worker(name, create, run, run_ids) for name in dict.fromkeys(names)]
        self._status: str | None = None
        self._has_started = False

    @classmethod
    def from_config(cls, config: Config, folder: Path, warn: Callable[[str], None]) -> Self:
        """Create the loggers that a run's settings name."""
        run = LoggedRun(folder.resolve().name, folder, dict(flatten_settings(config.model_dump())))
        return cls(config.loggers, run, warn)

    def handle(self, event: Event) -> None:
        """Forward the metrics of an event to the loggers."""
        if isinstance(event, RunStarted):
            self._has_started = True
            for worker in self._workers:
                worker.start()
        elif isinstance(event, RunEnded):
            self._status = event.status
        elif metrics := dict(event_metrics(event)):
            for worker in self._workers:
                worker.take(metrics, getattr(event, "step", 0), getattr(event, "epoch", None))
        self._report_errors()

    def close(self, status: str | None = None, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Finish the run in all loggers, and wait at most `timeout_s` seconds. May be called several times.

        If `status` is None, the run has failed.
        """
        workers, self._workers = self._workers, []
        if not self._has_started:
            return
        for worker in workers:
            worker.finish(status or self._status or "failed")
        deadline = time.monotonic() + timeout_s
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                self._warn(
                    f"logger {worker.name} has not finished after {timeout_s:.0f} s and is no longer awaited"
                )
        self._report_errors(workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("failed" if kind is not None and self._status is None else None)

    def _report_errors(self, workers: Sequence[_Worker] | None = None) -> None:
        for worker in self._workers if workers is None else workers:
            if (error := worker.take_error()) is not None:
                message = one_line(f"{type(error).__name__}: {error}")[:_MAX_MESSAGE_LENGTH]
                self._warn(f"logger {worker.name} failed and is disabled: {message}")


class _RunIds:
    """File with the identifiers of a run by logger."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        return content if isinstance(content, dict) else {}

    def of(self, name: str) -> str | None:
        with self._lock:
            run_id = self._read().get(name)
        return None if run_id is None else str(run_id)

    def keep(self, name: str, known: str) -> None:
        with self._lock:
            write_atomically(self._file, (json.dumps({**self._read(), name: known}) + "\n").encode())


class _Worker(threading.Thread):
    """Thread of one logger."""

    def __init__(self, name: str, make: Callable[[str], Logger], run: LoggedRun, run_ids: _RunIds) -> None:
        super().__init__(name=name, daemon=True)
        self._make = make
        self._run = run
        self._run_ids = run_ids
        self._queue: queue.SimpleQueue[tuple[Mapping[str, float], int, int | None] | str] = (
            queue.SimpleQueue()
        )
        self._error: BaseException | None = None
        self._has_failed = False

    def take(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        if not self._has_failed:
            self._queue.put((metrics, step, epoch))

    def finish(self, status: str) -> None:
        self._queue.put(status)

    def take_error(self) -> BaseException | None:
        """Return and clear the error of the logger."""
        error, self._error = self._error, None
        return error

    def run(self) -> None:
        try:
            logger = self._make(self.name)
            previous = self._run_ids.of(self.name)
            run_id = logger.start(self._run, previous)
            if run_id is not None and run_id != previous:
                self._run_ids.keep(self.name, run_id)
            while not isinstance(item := self._queue.get(), str):
                logger.log(*item)
            logger.end(item)
        except BaseException as error:
            # Catch every error of a package, including SystemExit, because the run must continue.
            self._error, self._has_failed = error, True
