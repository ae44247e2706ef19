"""The installed `hyrt`, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HYRT = Path(sys.executable).with_name("hyrt")
TINY = ["--data", "synthetic:tiny", "data.batch_size=256", "train.epochs=2"]


def _command(words: tuple[str | Path, ...]) -> list[str]:
    assert HYRT.exists(), "install hyrt into this environment first: make test does"
    return [str(HYRT), *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", "PYTHONWARNINGS": "error::ResourceWarning", **more}


def hyrt(*words: str | Path, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end and compare the exit code; a traceback is always wrong."""
    done = subprocess.run(
        _command(words), cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def begin(*words: str | Path, cwd: str | Path) -> subprocess.Popen[str]:
    """Start, to be stopped by a signal."""
    return subprocess.Popen(
        _command(words),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str], limit_s: float = 90.0) -> None:
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
