"""The command line without a process of its own: what it refuses, and commands that only write a file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import pytest

from hyrt.cli.commands import app
from hyrt.errors import HyrtError


def run_here(*words: str | Path, cwd: Path) -> None:
    """Run `hyrt` with these words in the folder `cwd`; raises the error that it would print."""
    # What a process of hyrt's own sets for itself would stay in this one.
    with contextlib.chdir(cwd), mock.patch("hyrt.runtime.process_setup.prepare_process"):
        app([*map(str, words)], prog_name="hyrt", standalone_mode=False)


def refused(*words: str | Path, cwd: Path, code: int = 2) -> str:
    """The error that `hyrt` with these words would print and exit with, in the folder `cwd`.

    That it is printed as one line with the prefix `error: `, and that the process ends with its code, is what
    `tests/unit/cli` and one process in `tests/end_to_end/test_errors.py` show.
    """
    with pytest.raises(HyrtError) as caught:
        run_here(*words, cwd=cwd)
    message = str(caught.value)
    assert caught.value.exit_code == code
    assert len(message.splitlines()) == 1
    return message
