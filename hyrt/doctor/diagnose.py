"""Run all checks and print their findings; shared by `hyrt doctor` and `python -m hyrt.doctor`."""

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
    """Print each finding as soon as it is made, or one JSON object at the end; return the exit code.

    The JSON object has `hyrt`, `python`, `seconds`, `exit_code`, `counts` (by state) and `findings`. A broken
    output pipe does not change the exit code.

    Parameters
    ----------
    asked
        Settings of the run, as given by the user.
    output
        Folder that will hold the run folders.
    limit_s
        Time limit of the worker process per package, backend or measurement, in seconds.
    as_json
        Whether to print the JSON object.
    """
    started = time.monotonic()
    findings: list[DoctorFinding] = []
    is_terminal = sys.stdout.isatty()
    # Wrap the lines even if the output is a pipe: a person reads it there as well; programs use --json.
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
    """Print text; escape characters that the output encoding lacks, and ignore a broken pipe."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(readable(text).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Otherwise the interpreter prints a second error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
