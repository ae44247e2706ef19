"""The whole diagnosis, in the order in which it is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hyrt.doctor.backends import Backends, ask_backends, judge_backends
from hyrt.doctor.bandwidth import check_bandwidth
from hyrt.doctor.child import Answer, Children
from hyrt.doctor.cpus import check_cpus
from hyrt.doctor.disk import check_disk
from hyrt.doctor.finding import Finding, one_line
from hyrt.doctor.kept_rates import check_kept_rates
from hyrt.doctor.kernel_cache import check_kernel_cache
from hyrt.doctor.locked_memory import check_locked_memory
from hyrt.doctor.memory import check_memory, host_memory
from hyrt.doctor.packages import check_packages, check_python
from hyrt.doctor.settings import Asked, ask_settings, judge_settings, wanted_devices
from hyrt.doctor.shared_memory import check_shared_memory
from hyrt.errors import describe

LIMIT_S = 60.0
"""For each package, backend and measurement: compiling the kernels for the first time takes half of it."""


def examine(asked: Asked, output: Path, limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Look at everything a run needs. Nothing that is checked is imported into this process.

    Parameters
    ----------
    asked
        What the user says of the run.
    output
        The folder that will hold the run folders.
    limit_s
        For each child process's item.

    Yields
    ------
    Findings, as they are made.
    """
    from hyrt.cores import available_cores

    cores = available_cores()
    # Two chains, each a process at a time: packages and kernels, backends and settings.
    with Children() as children, ThreadPoolExecutor(2, thread_name_prefix="hyrt.doctor") as threads:
        packages = threads.submit(_guarded, "packages", lambda: check_packages(children, limit_s))
        asking = threads.submit(ask_backends, children, limit_s, cores)
        kernels = threads.submit(_guarded, "kernel cache", lambda: check_kernel_cache(children, limit_s))
        try:
            yield from _guarded("python", check_python)
            installed = packages.result()
            yield from installed
            yield from _guarded("cpus", check_cpus)
            backends = _backends(asking)
            settings = ask_settings(children, asked, backends.devices, limit_s)
            yield from _host(settings, backends, output)
            yield from kernels.result()
            yield from _guarded("kept rates", check_kept_rates)
            yield from _guarded("settings", lambda: judge_settings(settings, cores))
            yield from _judged(asking, settings, installed)
            now = host_memory().now
            yield from _guarded("bandwidth", lambda: check_bandwidth(children, limit_s, cores, now))
        except BaseException:
            # Not after the threads' end, which would wait for the children.
            children.close()
            raise


def _backends(asking: Future[Backends]) -> Backends:
    """What was found; nothing where asking failed, which is told later."""
    return Backends({}, {}) if asking.exception() is not None else asking.result()


def _judged(asking: Future[Backends], settings: Answer | None, installed: Sequence[Finding]) -> list[Finding]:
    known = {
        finding.figures["problem"]: finding.check for finding in installed if finding.figures.get("problem")
    }
    return _guarded("backends", lambda: judge_backends(asking.result(), wanted_devices(settings), known))


def _host(settings: Answer | None, backends: Backends, output: Path) -> Iterator[Finding]:
    needs = None if settings is None else settings.first("needs")
    need = {} if needs is None else needs
    yield from _guarded("memory", lambda: check_memory(host_memory(), need.get("host")))
    yield from _guarded("shared memory", check_shared_memory)
    yield from _guarded(
        "locked memory", lambda: check_locked_memory(backends.own_memory, need.get("staged_bytes"))
    )
    yield from _guarded("run folder", lambda: check_disk(output, need.get("disk")))


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that fails is a finding; the others go on."""
    try:
        return check()
    except Exception as error:
        if os.environ.get("HYRT_TRACEBACK"):
            raise
        return [
            Finding(
                check=name,
                state="warning",
                found=f"could not be checked: {one_line(describe(error))}",
                remedy="run HYRT_TRACEBACK=1 hyrt doctor, and report what it says as a defect of hyrt",
            )
        ]
