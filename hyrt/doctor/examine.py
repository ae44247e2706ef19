"""All checks of `hyrt doctor`, in the order of the output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, warning
from hyrt.doctor.machine.bandwidth import check_bandwidth
from hyrt.doctor.machine.cpus import check_cpus
from hyrt.doctor.machine.disk import check_disk
from hyrt.doctor.machine.locked_memory import check_locked_memory
from hyrt.doctor.machine.memory import check_memory, host_memory
from hyrt.doctor.machine.shared_memory import check_shared_memory
from hyrt.doctor.settings import Asked, ask_settings, judge_settings, wanted_devices, wanted_kinds
from hyrt.doctor.software.backends import Backends, ask_backends, judge_backends
from hyrt.doctor.software.kept_rates import check_kept_rates
from hyrt.doctor.software.kernel_cache import check_kernel_cache
from hyrt.doctor.software.packages import check_packages, check_python
from hyrt.doctor.software.plug_ins import check_plug_ins
from hyrt.errors import describe, one_line
from hyrt.machine.child_processes.children import Answer, Children

LIMIT_S = 60.0
"""Default time limit per package, backend and measurement, in seconds."""


def examine(asked: Asked, output: Path, limit_s: float = LIMIT_S) -> Iterator[DoctorFinding]:
    """Run every check and yield its findings as soon as they are made.

    The packages under test are not imported into this process. The parameters are documented in
    `hyrt.doctor.diagnose.diagnose`.
    """
    from hyrt.machine.cores import shared_cores

    cores = shared_cores()
    with Children() as children:
        yield from _guarded("python", check_python)
        installed = _guarded("packages", lambda: check_packages(children, limit_s))
        yield from installed
        yield from _guarded("cpus", check_cpus)
        kernels = _guarded("kernel cache", lambda: check_kernel_cache(children, limit_s))
        rates = _guarded("kept rates", lambda: check_kept_rates(children, limit_s))
        # Measure the bandwidth before drivers start threads.
        available_bytes = host_memory().now
        bandwidth = _guarded("bandwidth", lambda: check_bandwidth(children, limit_s, cores, available_bytes))
        backends = ask_backends(children, limit_s, cores)
        settings = ask_settings(children, asked, backends.devices, limit_s)
    yield from _host(settings, backends, output)
    yield from kernels
    yield from rates
    yield from _guarded("plug-ins", lambda: check_plug_ins(wanted_kinds(settings)))
    yield from _guarded("settings", lambda: judge_settings(settings, cores))
    causes = [*installed, *kernels]
    yield from _guarded("backends", lambda: judge_backends(backends, wanted_devices(settings), causes))
    yield from bandwidth


def _host(settings: Answer | None, backends: Backends, output: Path) -> Iterator[DoctorFinding]:
    probed_needs = None if settings is None else settings.first("needs")
    needs_by_kind = {} if probed_needs is None else probed_needs
    yield from _guarded("memory", lambda: check_memory(host_memory(), needs_by_kind.get("host")))
    yield from _guarded("shared memory", check_shared_memory)
    yield from _guarded(
        "locked memory", lambda: check_locked_memory(backends.own_memory, needs_by_kind.get("staged_bytes"))
    )
    yield from _guarded("run folder", lambda: check_disk(output, needs_by_kind.get("disk")))


def _guarded(name: str, check: Callable[[], list[DoctorFinding]]) -> list[DoctorFinding]:
    """Run one check; if it raises, return a finding about that, so that the other checks still run."""
    try:
        return check()
    except Exception as error:
        if os.environ.get("HYRT_TRACEBACK"):
            raise
        return warning(
            name,
            f"could not be checked: {one_line(describe(error))}",
            "run HYRT_TRACEBACK=1 hyrt doctor, and report its output as a bug in hyrt",
        )
