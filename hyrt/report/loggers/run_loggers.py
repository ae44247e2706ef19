"""Loggers of one run, each on a separate thread so that it cannot block or end the run."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hyrt.config import Config
from hyrt.config.yaml_text import leaves
from hyrt.errors import one_line
from hyrt.machine.atomic_write import write_atomically
from hyrt.observe.events import Event, RunEnded, RunStarted
from hyrt.report.loggers.logged_metrics import logged_metrics
from hyrt.report.loggers.logger import LoggedRun, Logger
from hyrt.report.loggers.registry import make_logger

KNOWN = "loggers.json"
"""File of a run folder with each logger's identifier of the run."""
_CLOSE_TIMEOUT_S = 60.0
_MAX_MESSAGE_LENGTH = 200


class RunLoggers:
    """Forwards the events of a run to loggers; a context manager.

    Parameters
    ----------
    names
        Names of the loggers.
    run
        Description of the run.
    warn
        Called with a message if a logger fails, on the caller's thread.
    make
        Creates a logger by name.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: LoggedRun,
        warn: Callable[[str], None],
        make: Callable[[str], Logger] = make_logger,
    ) -> None:
        self._run = run
        self._warn = warn
        run_ids = _RunIds(run.folder / KNOWN)
        self._workers = [_Worker(name, make, run, run_ids) for name in dict.fromkeys(names)]
        self._status: str | None = None
        self._has_started = False

    @classmethod
    def of(cls, config: Config, folder: Path, warn: Callable[[str], None]) -> Self:
        """Create the loggers that a run's settings name."""
        run = LoggedRun(folder.resolve().name, folder, dict(leaves(config.model_dump())))
        return cls(config.loggers, run, warn)

    def handle(self, event: Event) -> None:
        """Forward the metrics of an event to the loggers."""
        if isinstance(event, RunStarted):
            self._has_started = True
            for worker in self._workers:
                worker.start()
        elif isinstance(event, RunEnded):
            self._status = event.status
        elif metrics := dict(logged_metrics(event)):
            for worker in self._workers:
                worker.take(metrics, getattr(event, "step", 0), getattr(event, "epoch", None))
        self._report_errors()

    def close(self, status: str | None = None, longest_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Finish the run in all loggers, and wait for them at most `longest_s` seconds; idempotent.

        A run without a recorded status has failed.
        """
        workers, self._workers = self._workers, []
        if not self._has_started:
            return
        for worker in workers:
            worker.finish(status or self._status or "failed")
        deadline = time.monotonic() + longest_s
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                self._warn(f"logger {worker.name} has not finished after {longest_s:.0f} s and is abandoned")
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
    """File with the loggers' identifiers of the run."""

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
            # Catch every error of a package, including SystemExit: the run continues.
            self._error, self._has_failed = error, True
