"""Execution of hyrt's commands in tutorials in forked processes, which saves import time.

A tutorial contains `subprocess.run([sys.executable, "-m", "hyrt", ...])` for its readers. While the site is
built, such a process is forked from a process that has already imported the common modules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from forked_runs import ForkedRuns

_COMMAND = (sys.executable, "-m", "hyrt")
_LIMIT_S = 600.0
# Line width of a process that has no terminal.
_WIDTH = "80"


@contextmanager
def commands_forked() -> Iterator[None]:
    """Make `subprocess.run` fork hyrt commands within the block. Other programs are started as usual."""
    start = subprocess.run
    with (
        ForkedRuns(COLUMNS=os.environ.get("COLUMNS", _WIDTH)) as runs,
        tempfile.TemporaryDirectory(prefix="hyrt-site-") as folder,
    ):

        def run(command: Any, **options: Any) -> Any:
            if isinstance(command, str) or tuple(command[: len(_COMMAND)]) != _COMMAND:
                return start(command, **options)
            return _forked(runs, Path(folder), list(command[len(_COMMAND) :]), **options)

        with mock.patch.object(subprocess, "run", run):
            yield


def _forked(
    runs: ForkedRuns,
    folder: Path,
    words: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    text: bool = False,
    check: bool = False,
) -> subprocess.CompletedProcess[Any]:
    """Emulate `subprocess.run` with the options that tutorials use. Other options raise TypeError."""
    run = runs.start(list(words), Path(cwd or Path.cwd()), apart=folder, **(env or {}))
    code = runs.wait(run, _LIMIT_S)
    # Forward the error output, as a started process would.
    sys.stderr.write(run.errors.read_text())
    if code is None:
        raise subprocess.TimeoutExpired([*_COMMAND, *words], _LIMIT_S)
    printed = run.output.read_bytes()
    if stdout is None:
        sys.stdout.write(printed.decode())
    output = None if stdout != subprocess.PIPE else printed.decode() if text else printed
    done = subprocess.CompletedProcess([*_COMMAND, *words], code, output)
    if check:
        done.check_returncode()
    return done
