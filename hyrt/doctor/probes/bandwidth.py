"""Probe of host memory bandwidth: copies, and gathers of feature rows with the kernel of the load stage."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_REPETITIONS = 3
_WIDTH = 128
_ROW_BYTES = 4 * _WIDTH
_GRAIN_BYTES = 1 << 20


def probe_bandwidth(
    item: str, report: Callable[..., None], *, threads: int, num_bytes: int, **arguments: Any
) -> None:
    """Report `copy_gb_s` (bytes read and written), `gather_gb_s` (bytes read) and any `calibrated_gb_s`.

    All threads share the work. The source has `num_bytes`, which should exceed the caches.
    """
    from hyrt.graph.row_kernels import gather_rows
    from hyrt.runtime.workers import Workers

    rows = max(1024, num_bytes // _ROW_BYTES)
    source = np.ones((rows, _WIDTH), np.float32)
    target = np.empty_like(source)
    order = np.random.default_rng(0).permutation(rows).astype(np.int32)
    grain = max(1, _GRAIN_BYTES // _ROW_BYTES)
    with Workers(threads, "hyrt.doctor") as workers:
        copy_s = _median_seconds(
            lambda: workers.run(
                lambda start, stop: np.copyto(target[start:stop], source[start:stop]), rows, grain
            )
        )
        report(copy_gb_s=2 * source.nbytes / copy_s / 1e9)
        gather_s = _median_seconds(
            lambda: workers.run(
                lambda start, stop: gather_rows(source, order, target, start, stop), rows, grain
            )
        )
        report(gather_gb_s=source.nbytes / gather_s / 1e9)
    if not np.array_equal(target, source):
        raise ArithmeticError("the gathered rows differ from those of the source")
    report(calibrated_gb_s=_calibrated_gb_s())


def _median_seconds(work: Callable[[], None]) -> float:
    """Return the median time of several calls after one warm-up (page faults, loading of the kernel)."""
    seconds = []
    for _ in range(_REPETITIONS + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _calibrated_gb_s() -> float | None:
    """Return the gather bandwidth of `hyrt calibrate`; None if this machine is not calibrated."""
    from hyrt_perfmodel.platforms.platform_file import CalibrationError, calibration_file, read_calibration

    if not os.path.exists(calibration_file()):
        return None
    try:
        return read_calibration().platform.host.memory_gb_s
    except CalibrationError:
        return None  # `hyrt predict` reports the problem when it needs the calibration.
