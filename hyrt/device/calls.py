"""Device calls outside the pipeline, with a time limit and with errors that name the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.capabilities import TakesObjective
from hyrt.errors import (
    DeviceFaultError,
    DeviceUnavailableError,
    HyrtError,
    StallError,
    UnsupportedModelError,
    describe_error,
)
from hyrt.runtime.shutdown import report_unexpected_exit

if TYPE_CHECKING:
    import torch

    from hyrt.objective import Objective

T = TypeVar("T")

# Time limit for commands without a stall timeout setting: long, because drivers compile kernels on open.
_PATIENCE_S = 60.0
_PIECE_S = 1.0


def call_device(
    name: str,
    doing: str,
    call: Callable[[], T],
    *,
    fault: type[HyrtError],
    timeout_s: float = _PATIENCE_S,
    remedy: str = "",
) -> T:
    """Run a device call that may hang or raise any exception; raise StallError after `timeout_s` seconds.

    The call runs in a daemon thread, which is abandoned if it hangs: it cannot be stopped, but it does not
    keep the process alive. `name` and `doing` are the device and the operation for messages, such as
    `opencl:0` and `open`. An exception that hyrt does not define is replaced by an exception of class `fault`
    whose message ends with `remedy`.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=f"hyrt.{doing}.{name}", daemon=True)
    with report_device_on_exit(name, doing):
        thread.start()
        # Wait in short intervals: if the process was suspended, only one interval counts towards the timeout.
        waited_s = 0.0
        while thread.is_alive() and waited_s < timeout_s:
            piece_s = min(_PIECE_S, timeout_s - waited_s)
            thread.join(piece_s)
            waited_s += piece_s
    if errors:
        error = errors[0]
        if isinstance(error, HyrtError):
            if name not in str(error):
                raise type(error)(f"{name}: {error}") from error
            raise error
        reason = " ".join(describe_error(error).split())
        raise fault(f"{name}: {doing} failed ({reason}){f': {remedy}' if remedy else ''}") from error
    if not answers:
        raise StallError(
            f"{name}: {doing} did not finish within {timeout_s:g} s: restart its driver, or raise "
            "runtime.stall_timeout_s if it needs more time"
        )
    return answers[0]


def report_device_on_exit(name: str, doing: str) -> AbstractContextManager[None]:
    """Print the device name to standard error if the process ends for any reason within the block.

    No-op for the CPU trainer, which has no driver that could end the process.
    """
    return (
        nullcontext()
        if name.startswith("cpu:")
        else report_unexpected_exit(abrupt_exit_message(f"{doing} of {name}"))
    )


def abrupt_exit_message(call: str) -> str:
    """Return the error message for a process that ended during `call`, such as `open of opencl:0`."""
    return (
        f"hyrt: the process ended during {call}, and unless you stopped it, the backend or its driver "
        "crashed: update them, or run without that device"
    )


def open_device(backend: type[Device], info: DeviceInfo, options: DeviceOptions, timeout_s: float) -> Device:
    """Open a device with a time limit.

    Raises DeviceUnavailableError if it cannot be opened or is not a device, and StallError if opening hangs.
    """
    remedy = "update its backend or its driver, or run without that device"
    device = call_device(
        info.name,
        "open",
        lambda: backend.open(info, options),
        timeout_s=timeout_s,
        fault=DeviceUnavailableError,
        remedy=remedy,
    )
    if not isinstance(device, Device):
        raise DeviceUnavailableError(
            f"{info.name}: open returned {type(device).__name__}, expected a device: {remedy}"
        )
    return device


def load_replica(
    device: Device, model: torch.nn.Module, parameters: Sequence[torch.Tensor], objective: Objective
) -> None:
    """Load a model and its objective onto a device.

    Raises UnsupportedModelError if the device cannot run the model or train for the objective. The message
    names both.
    """
    if isinstance(device, TakesObjective):
        device.take_objective(objective)
    elif not objective.is_plain_classification:
        smoothed = " with label smoothing" if objective.name == "classification" else ""
        raise UnsupportedModelError(
            f"{device.info.name} does not support objective {objective.name!r}{smoothed}, only plain "
            "classification: use a device that supports other objectives, such as cpu"
        )
    device.load(model, parameters)


@contextmanager
def opened(
    backend: type[Device], info: DeviceInfo, options: DeviceOptions, timeout_s: float = _PATIENCE_S
) -> Iterator[Device]:
    """Open a device, close it at the end of the block, and limit the time of both calls.

    Raises DeviceUnavailableError if it cannot be opened, and StallError if opening or closing hangs.
    """
    device = open_device(backend, info, options, timeout_s)
    try:
        yield device
    finally:
        call_device(info.name, "close", device.close, timeout_s=timeout_s, fault=DeviceFaultError)
