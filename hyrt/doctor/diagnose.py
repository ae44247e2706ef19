"""All checks of `hyrt doctor` and `python -m hyrt.doctor`, and the printing of their findings."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hyrt import __version__
from hyrt.doctor.backend_checks import ProbedBackends, evaluate_backends, probe_backends
from hyrt.doctor.finding import STATES, DoctorFinding, exit_code, finding_lines, summary_line, warning
from hyrt.doctor.host_checks import (
    check_bandwidth,
    check_cpus,
    check_disk,
    check_locked_memory,
    check_memory,
    check_shared_memory,
    host_memory,
)
from hyrt.doctor.settings_checks import (
    DoctorRequest,
    evaluate_settings,
    probe_settings,
    requested_devices,
    requested_kinds,
)
from hyrt.doctor.software_checks import (
    check_calibration,
    check_kernel_cache,
    check_packages,
    check_plug_ins,
    check_python,
)
from hyrt.errors import describe_error, escape_undecodable, one_line
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

TIME_LIMIT_S = 60.0
"""Default time limit per package, backend and measurement, in seconds."""


def run_checks(
    request: DoctorRequest, output: Path, limit_s: float = TIME_LIMIT_S
) -> Iterator[DoctorFinding]:
    """Run every check and yield its findings at once; the parameters are those of `diagnose`.

    The packages under test are not imported into this process.
    """
    from hyrt.runtime.hardware import shared_cores

    cores = shared_cores()
    with IsolatedWorker() as children:
        yield from _guarded("python", check_python)
        installed = _guarded("packages", lambda: check_packages(children, limit_s))
        yield from installed
        yield from _guarded("cpus", check_cpus)
        kernels = _guarded("kernel cache", lambda: check_kernel_cache(children, limit_s))
        rates = _guarded("kept rates", lambda: check_calibration(children, limit_s))
        # Measure the bandwidth before drivers start threads.
        available_bytes = host_memory().available_bytes
        bandwidth = _guarded("bandwidth", lambda: check_bandwidth(children, limit_s, cores, available_bytes))
        backends = probe_backends(children, limit_s, cores)
        settings = probe_settings(children, request, backends.devices, limit_s)
    yield from _host(settings, backends, output)
    yield from kernels
    yield from rates
    yield from _guarded("plug-ins", lambda: check_plug_ins(requested_kinds(settings)))
    yield from _guarded("settings", lambda: evaluate_settings(settings, cores))
    causes = [*installed, *kernels]
    yield from _guarded("backends", lambda: evaluate_backends(backends, requested_devices(settings), causes))
    yield from bandwidth


def _host(settings: Answer | None, backends: ProbedBackends, output: Path) -> Iterator[DoctorFinding]:
    probed_needs = None if settings is None else settings.first_value("needs")
    needs_by_kind = {} if probed_needs is None else probed_needs
    yield from _guarded("memory", lambda: check_memory(host_memory(), needs_by_kind.get("host")))
    yield from _guarded("shared memory", check_shared_memory)
    yield from _guarded(
        "locked memory",
        lambda: check_locked_memory(backends.devices_with_memory, needs_by_kind.get("staged_bytes")),
    )
    yield from _guarded("run folder", lambda: check_disk(output, needs_by_kind.get("disk")))


def _guarded(name: str, check: Callable[[], list[DoctorFinding]]) -> list[DoctorFinding]:
    """Run one check; if it raises, return a finding on the error, so that the other checks still run."""
    try:
        return check()
    except Exception as error:
        if os.environ.get("HYRT_TRACEBACK"):
            raise
        return warning(
            name,
            f"could not be checked: {one_line(describe_error(error))}",
            "run HYRT_TRACEBACK=1 hyrt doctor, and report its output as a bug in hyrt",
        )


def diagnose(request: DoctorRequest, output: Path, *, limit_s: float, as_json: bool) -> int:
    """Print each finding at once, or one JSON object at the end; return the exit code.

    The JSON object has `hyrt`, `python`, `seconds`, `exit_code`, `counts` (by state) and `findings`. `output`
    is the parent of the run folders; `limit_s` applies to each package, backend and measurement. A broken
    output pipe does not change the exit code.
    """
    started = time.monotonic()
    findings: list[DoctorFinding] = []
    is_terminal = sys.stdout.isatty()
    # Wrap lines in pipes as well, because people read that output; programs use --json.
    width = shutil.get_terminal_size().columns
    coloured = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for finding in run_checks(request, output, limit_s):
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
        _print(summary_line(findings, seconds))
    return code


def _print(text: str) -> None:
    """Print text; escape characters that the output encoding lacks, and ignore a broken pipe."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(escape_undecodable(text).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Otherwise the interpreter prints a second error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
