"""Examining and printing, for the two ways to start it: `hyrt doctor`, and `python -m hyrt.doctor`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from hyrt import __version__
from hyrt.doctor.examine import examine
from hyrt.doctor.finding import STATES, DoctorFinding, exit_code
from hyrt.doctor.settings import Asked
from hyrt.doctor.table import finding_lines, last_line
from hyrt.errors import readable


def diagnose(asked: Asked, output: Path, *, limit_s: float, as_json: bool) -> int:
    """Print findings as they are made, or one JSON object; returns the exit code.

    The JSON has `hyrt`, `python`, `seconds`, `exit_code`, `counts` by state, and `findings`. A reader that
    leaves does not change the exit code.

    Parameters
    ----------
    asked
        The settings of the run as the user gave them.
    output
        The folder that will hold the run folders.
    limit_s
        How long a child process may take for one package, backend or measurement.
    as_json
        Whether to print the JSON object.
    """
    started = time.monotonic()
    findings: list[DoctorFinding] = []
    is_terminal = sys.stdout.isatty()
    # Into a pipe as well: it is people who read it there, and --json is for programs.
    width = shutil.get_terminal_size().columns
    coloured = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for finding in examine(asked, output, limit_s):
        findings.append(finding)
        if not as_json:
            _print("\n".join(finding_lines(finding, width, coloured=coloured)))
    seconds = time.monotonic() - started
    code = exit_code(findings)
    if as_json:
        facts = {
            "hyrt": __version__,
            "python": platform.python_version(),
            "seconds": round(seconds, 3),
            "exit_code": code,
            "counts": {state: sum(finding.state == state for finding in findings) for state in STATES},
            "findings": [finding.to_json() for finding in findings],
        }
        _print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        _print(last_line(findings, seconds))
    return code


def _print(text: str) -> None:
    """Also what the terminal's encoding lacks; to a reader that has left, nothing."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(readable(text).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Else the interpreter complains once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
