"""Bandwidth of host memory: copying, and gathering feature rows with the kernel that runs load with."""

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


def answer(item: str, say: Callable[..., None], *, threads: int, num_bytes: int, **arguments: Any) -> None:
    """Say `copy_gb_s` (read and written), `gather_gb_s` (rows read), and `calibrated_gb_s` if there is one.

    The threads share the work; `num_bytes` of the source are more than caches hold.
    """
    from hyrt.graph.row_kernels import gather_rows
    from hyrt.machine.workers import Workers

    rows = max(1024, num_bytes // _ROW_BYTES)
    source = np.ones((rows, _WIDTH), np.float32)
    target = np.empty_like(source)
    order = np.random.default_rng(0).permutation(rows).astype(np.int32)
    grain = max(1, _GRAIN_BYTES // _ROW_BYTES)
    with Workers(threads, "hyrt.doctor") as workers:
        copy_s = _seconds(
            lambda: workers.run(
                lambda start, stop: np.copyto(target[start:stop], source[start:stop]), rows, grain
            )
        )
        say(copy_gb_s=2 * source.nbytes / copy_s / 1e9)
        gather_s = _seconds(
            lambda: workers.run(
                lambda start, stop: gather_rows(source, order, target, start, stop), rows, grain
            )
        )
        say(gather_gb_s=source.nbytes / gather_s / 1e9)
    if not np.array_equal(target, source):
        raise ArithmeticError("the gathered rows differ from those of the source")
    say(calibrated_gb_s=_calibrated())


def _seconds(work: Callable[[], None]) -> float:
    """Median of some repetitions; the first, which pays page faults and loads the kernel, is left out."""
    spent = []
    for _ in range(_REPETITIONS + 1):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent[1:])


def _calibrated() -> float | None:
    """Gathering bandwidth that `hyrt calibrate` measured on this machine; None where it did not."""
    from hyrt_perfmodel.platforms.calibration_file import CalibrationError, calibration_file, read_calibration

    if not os.path.exists(calibration_file()):
        return None
    try:
        return read_calibration().platform.host.memory_gb_s
    except CalibrationError:
        return None  # `hyrt predict` says so where it is needed.
