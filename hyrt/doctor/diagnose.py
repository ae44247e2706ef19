"""All checks of `hyrt doctor` and `python -m hyrt.doctor`, including the settings of a run, and the output of
findings.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt import __version__
from hyrt.doctor.finding import (
    STATES,
    DoctorFinding,
    broken,
    exit_code,
    finding_lines,
    note,
    ok,
    summary_line,
    warning,
)
from hyrt.doctor.host_checks import (
    check_bandwidth,
    check_cpus,
    check_disk,
    check_locked_memory,
    check_memory,
    check_shared_memory,
    host_memory,
)
from hyrt.doctor.software_checks import (
    DEFAULT_KINDS,
    ProbedBackends,
    check_calibration,
    check_kernel_cache,
    check_packages,
    check_plug_ins,
    check_python,
    evaluate_backends,
    probe_backends,
)
from hyrt.errors import describe_error, escape_undecodable, one_line
from hyrt.formatting import format_bytes
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

# Devices of a run without settings.
_DEFAULT_DEVICES = ("cpu",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """Settings of a run as specified by the user."""

    words: tuple[str, ...] = ()
    """Settings file and overrides as command-line arguments."""
    options: Mapping[str, str | None]
    """Overrides by key, with `__` instead of a dot; None if not set."""

    @property
    def has_settings(self) -> bool:
        """Whether there are settings of a run; otherwise only the machine is checked."""
        return bool(self.words) or any(value is not None for value in self.options.values())


def probe_settings(
    children: IsolatedWorker, request: DoctorRequest, devices: Sequence[Mapping[str, Any]], limit_s: float
) -> Answer | None:
    """Read the settings in the worker process; return None without settings."""
    if not request.has_settings:
        return None
    return children.query(
        "hyrt.doctor.software_probes:probe_run_settings",
        ["settings"],
        limit_s=limit_s,
        words=list(request.words),
        options=dict(request.options),
        found=[dict(info) for info in devices],
    )["settings"]


def requested_devices(answer: Answer | None) -> list[str]:
    """Return the names of the devices that the run uses."""
    config = None if answer is None else answer.first_value("config")
    return list(_DEFAULT_DEVICES if config is None else config["devices"])


def requested_kinds(answer: Answer | None) -> Mapping[str, str]:
    """Return the sampler, model and objective of the run."""
    kinds = None if answer is None else answer.first_value("kinds")
    return DEFAULT_KINDS if kinds is None else kinds


def evaluate_settings(answer: Answer | None, usable_cpus: int) -> list[DoctorFinding]:
    """Return the findings on settings, dataset, threads and device memory; empty without settings."""
    if answer is None:
        return []
    problems = [event for event in answer.messages if "wrong" in event]
    if answer.problem:
        remedy = (
            "see the lines on the packages above; for details, run `hyrt run --print-config` "
            "with the same arguments"
        )
        return broken("settings", f"cannot be read: {answer.problem}", remedy)
    findings: list[DoctorFinding] = []
    config = answer.first_value("config")
    if config is not None:
        found = f"{config['file'] or 'as given'}: {config['source']} on {', '.join(config['devices'])}"
        findings += [*ok("settings", found, config), *_threads(config["threads"], usable_cpus)]
    findings += [_settings_problem(event["wrong"], event["why"], event.get("remedy")) for event in problems]
    data = answer.first_value("data")
    if data is not None:
        sizes = answer.first_value("sizes")
        memory_text = f"{format_bytes(sizes['memory_bytes'])} in memory"
        memory_text += f", {format_bytes(sizes['mapped_bytes'])} mapped" if sizes["mapped_bytes"] else ""
        findings += ok("data", f"{data}: {memory_text}", sizes)
    unknown = answer.first_value("unknown")
    if unknown is not None:
        findings += note("data", f"its memory cannot be estimated: {unknown}")
    needs = answer.first_value("needs")
    if needs is not None:
        for name, memory in needs["devices"].items():
            findings += _device_memory(name, memory["need_bytes"], memory["have_bytes"])
    return findings


def _settings_problem(check: str, reason: str, remedy: str | None) -> DoctorFinding:
    remedy = remedy or "correct the setting; `hyrt run --print-config` lists all settings"
    if check == "data":
        remedy = (
            "pip install 'hyrt[ogb]'"
            if "ogb package" in reason
            else "set another data.source, or repair the dataset (see hyrt data info)"
        )
    return DoctorFinding(check, "broken", one_line(reason), remedy)


def _threads(threads: Mapping[str, int], usable_cpus: int) -> list[DoctorFinding]:
    over = [f"runtime.{name}={count}" for name, count in threads.items() if count > usable_cpus]
    if not over:
        return []
    found = (
        f"{', '.join(over)} exceeds the {usable_cpus} CPUs available to a run, so threads "
        "will wait for each other"
    )
    remedy = f"lower them to at most {usable_cpus}, or set them to 0 to choose them automatically"
    return warning("threads", found, remedy, {**threads, "usable": usable_cpus})


def _device_memory(name: str, needed: int, available: int | None) -> list[DoctorFinding]:
    figures = {"need_bytes": needed, "have_bytes": available}
    if available is None or needed <= available:
        capacity = "" if available is None else f" of {format_bytes(available)}"
        text = f"{name} needs about {format_bytes(needed)}{capacity}"
        return ok("device memory", text, figures)
    found = (
        f"{name} would need about {format_bytes(needed)}, but has "
        f"{format_bytes(available)}: its share of each step will shrink"
    )
    remedy = f"set a smaller share (--devices cpu=1,{name}=1), or lower data.batch_size or sampler.fanout"
    return warning("device memory", f"{found} until it fits", remedy, figures)


TIME_LIMIT_S = 60.0
"""Default time limit per package, backend and measurement, in seconds."""


def run_checks(
    request: DoctorRequest, output: Path, limit_s: float = TIME_LIMIT_S
) -> Iterator[DoctorFinding]:
    """Run every check, and yield its findings at once; parameters are as for `diagnose`.

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
    """Run a check. If it raises an exception, return a finding about it, and run the other checks."""
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
    """Print text, with escapes for characters that the output encoding lacks; ignore a broken pipe."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(escape_undecodable(text).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Otherwise the interpreter prints a second error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
