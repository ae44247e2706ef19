"""`hyrt` as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_runs import ForkedRun, ForkedRuns

HYRT = Path(sys.executable).with_name("hyrt")
TINY = ["--data", "synthetic:tiny", "data.batch_size=256", "train.epochs=2"]
_LIMIT_S = 150.0
_LAST_WORDS_S = 10.0


@dataclass
class _Server:
    """Where processes come from while tests run."""

    runs: ForkedRuns | None = None
    folder: Path = Path()

    def start(self, words: tuple[str | Path, ...], cwd: str | Path, **more: str) -> ForkedRun:
        assert self.runs is not None
        return self.runs.start(
            _words(words), Path(cwd), is_quick=True, apart=self.folder, **environment(**more)
        )

    def wait(self, run: ForkedRun, timeout_s: float) -> int | None:
        assert self.runs is not None
        return self.runs.wait(run, timeout_s)


_SERVER = _Server()


@contextmanager
def served_by(runs: ForkedRuns, folder: Path) -> Iterator[None]:
    """Start what `hyrt` and `begin` start from a server; `folder` is for what it prints."""
    _SERVER.runs, _SERVER.folder = runs, folder
    yield
    _SERVER.runs = None


def _words(words: tuple[str | Path, ...]) -> list[str]:
    # What a test sets itself takes the place of what its list of words has, without a warning.
    last = {str(word).partition("=")[0]: str(word) for word in words}
    return [str(word) for word in words if last[str(word).partition("=")[0]] == str(word)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", "PYTHONWARNINGS": "error::ResourceWarning", **more}


def hyrt(
    *words: str | Path, cwd: Path, code: int = 0, last_words: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run to the end and compare the exit code; a traceback is always wrong, and so is a thread left.

    The process is forked from one that has imported what every run imports: see `installed_hyrt`.
    Another process may print last words for it after its end.
    """
    run = _SERVER.start(words, cwd, **more)
    found = _SERVER.wait(run, _LIMIT_S)
    end = time.monotonic() + _LAST_WORDS_S
    while last_words not in run.errors.read_text() and time.monotonic() < end:
        time.sleep(0.01)
    done = subprocess.CompletedProcess(
        list(words), _LIMIT_S if found is None else found, run.output.read_text(), run.errors.read_text()
    )
    if found is not None and found >= 0 and run.threads_left.exists():
        left = run.threads_left.read_text()
        assert not left, f"threads that still run: {left}"
    return _checked(done, code)


def installed_hyrt(
    *words: str | Path, cwd: Path, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """As `hyrt`, by an interpreter that starts anew: where how it starts and ends, or imports, is tested."""
    assert HYRT.exists(), "install hyrt into this environment first: make test does"
    done = subprocess.run(
        [HYRT, *_words(words)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    return _checked(done, code)


def _checked(done: subprocess.CompletedProcess[str], code: int) -> subprocess.CompletedProcess[str]:
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


class BegunRun:
    """A process that was started, to be stopped by a signal; as `subprocess.Popen`.

    Parameters
    ----------
    run
        The process.
    """

    def __init__(self, run: ForkedRun) -> None:
        self._run = run
        self.pid = run.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._wait(0.0)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = _LIMIT_S) -> tuple[str, str]:
        """What it printed and its errors, when it has ended."""
        assert self._wait(timeout) is not None, f"did not end within {timeout:g} s"
        return self._run.output.read_text(), self._run.errors.read_text()

    def _wait(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self.returncode = _SERVER.wait(self._run, timeout_s)
        return self.returncode


def begin(*words: str | Path, cwd: str | Path, **more: str) -> BegunRun:
    """Start, to be stopped by a signal or to run beside others; forked as in `hyrt`."""
    return BegunRun(_SERVER.start(words, cwd, **more))


def wait_until(true: Callable[[], bool], process: BegunRun, limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert process.poll() is None, f"ended too early\n{process.communicate()}"
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def records(run: Path) -> list[dict[str, Any]]:
    """Whole lines of metrics.jsonl so far."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(run: Path) -> int:
    return max((record.get("step", 0) for record in records(run)), default=0)


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run
