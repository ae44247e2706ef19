"""Probes of host memory bandwidth and of a backend, which run in an isolated worker process."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.discovery import BACKENDS, probed
from hyrt.errors import describe_error

_REPETITIONS = 3
_WIDTH = 128
_ROW_BYTES = 4 * _WIDTH
_GRAIN_BYTES = 1 << 20


def probe_bandwidth(
    item: str, report: Callable[..., None], *, threads: int, num_bytes: int, **arguments: Any
) -> None:
    """Report `copy_gb_s` (bytes read and written), `gather_gb_s` (bytes read), and any `calibrated_gb_s`.

    All threads share the work. The source array has `num_bytes` bytes, which should exceed the caches.
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
        raise ArithmeticError("the gathered rows differ from the source rows")
    report(calibrated_gb_s=_calibrated_gb_s())


def _median_seconds(work: Callable[[], None]) -> float:
    """Return the median duration of several calls in seconds, after a warm-up call."""
    seconds = []
    for _ in range(_REPETITIONS + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _calibrated_gb_s() -> float | None:
    """Return the gather bandwidth measured by `hyrt calibrate`; None if this machine is not calibrated."""
    from hyrt_perfmodel.platform_file import CalibrationError, calibration_file, read_calibration

    if not os.path.exists(calibration_file()):
        return None
    try:
        return read_calibration().platform.host.memory_gb_s
    except CalibrationError:
        return None  # `hyrt predict` reports this problem when it needs the calibration.


_LEARNING_RATE = 1e-3


def probe_backend(item: str, report: Callable[..., None], *, threads: int, **arguments: Any) -> None:
    """Report `found` (descriptions of devices) or `missing`, and `trained` or `failed` for each device."""
    from hyrt.testing.trial import CheckFailedError

    backend, found, missing = probed(BACKENDS.find_entry(item))
    if missing:
        report(missing=missing)
        return
    report(found=[_device_facts(info) for info in found])
    for info in _select_devices(found):
        report(device=info.name, event="begun")
        try:
            outcome = _train(backend, info, threads)
        except Exception as error:  # A driver may raise anything. Continue with the other devices.
            report(
                device=info.name,
                event="failed",
                why=str(error) if isinstance(error, CheckFailedError) else describe_error(error),
            )
        else:
            report(device=info.name, event="trained", **outcome)


def _device_facts(info: DeviceInfo) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(info).items() if key not in ("rates", "forms")}
    return {"name": info.name, **facts}


def _select_devices(found: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return all devices with separate hardware, and the first one that shares host cores or is simulated."""
    shared = [info for info in found if info.host_cores or info.simulated]
    return [info for info in found if info not in shared] + shared[:1]


def _train(backend: type[Device], info: DeviceInfo, threads: int) -> dict[str, Any]:
    """Train two steps with an update in between, and compare the sums with a dense float64 computation."""
    import torch

    from hyrt.testing import cases
    from hyrt.testing.trial import Trial, check_agreement, compute_reference, load_model, run_step

    started = time.perf_counter()
    trial = Trial(
        lambda requested: backend.open(
            info, DeviceOptions(threads=threads, memory_bytes=requested.memory_bytes)
        )
    )
    with contextlib.ExitStack() as stack:
        stack.callback(trial.close_all)
        device = trial.open(threads=threads)
        opened_s = time.perf_counter() - started
        model = trial.model()
        parameters = load_model(device, model)
        losses = []
        for number in range(2):
            batch = trial.batch(model=model, step=cases.STEP + number)
            result = run_step(device, batch)
            computes = not info.simulated or any(bool(gradient.any()) for gradient in result.gradients)
            if computes:
                check_agreement(result, compute_reference(model, batch, trial.graph(model=model)))
            losses.append(result.loss_sum)
            # Do not use torch.optim: it imports torch's compiler, which takes as long as torch itself.
            with torch.no_grad():
                for parameter, gradient in zip(parameters, result.gradients, strict=True):
                    parameter -= _LEARNING_RATE * gradient / result.normalizer
            device.update(parameters)
            batch.release()
    seconds = time.perf_counter() - started
    return {"computes": computes, "losses": losses, "open_s": opened_s, "seconds": seconds}
