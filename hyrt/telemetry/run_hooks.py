"""Hooks that hyrt adds to a run: reports of device calls after a crash, and faults if HYRT_FAULT is set."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hyrt.device import Device
from hyrt.device.calls import abrupt_exit_message
from hyrt.telemetry.events import Notice
from hyrt.telemetry.hooks import Hook, Site

T = TypeVar("T")

# Stages that call devices in the trainers' threads, with one call at a time per trainer and stage. Calls
# outside the pipeline are reported by `hyrt.device.calls`.
_STAGES = ("transfer", "propagate", "update")
_SLOT = 256
# End of file on standard input means that the process has ended. The file then has its unfinished calls. It
# is opened by number, because dash duplicates only single-digit descriptors.
_MONITOR_SCRIPT = 'read -r over; tr -d "\\000" <"/dev/fd/$1" >&2'


class CrashContext(Hook):
    """Hook that reports the device calls in progress on standard error if the process dies for any reason.

    A driver may end the process in ways that no handler sees: `abort`, `_exit`, a signal. Each call is
    therefore written to a file, which takes about a microsecond, and a shell prints the file when the process
    has ended. `trainers` has the indices of the trainers to report.
    """

    def __init__(self, trainers: Sequence[int]) -> None:
        places = [(trainer, stage) for trainer in trainers for stage in _STAGES]
        self._slots = {place: number * _SLOT for number, place in enumerate(places)}
        self._calls: mmap.mmap | None = None
        self._monitor: subprocess.Popen[bytes] | None = None

    def on_start(self, devices: Sequence[Device], steps: range) -> Notice | None:
        try:
            with tempfile.TemporaryFile() as file:
                file.truncate(len(self._slots) * _SLOT)
                number = file.fileno()
                self._monitor = subprocess.Popen(
                    ["sh", "-c", _MONITOR_SCRIPT, "sh", str(number)],
                    stdin=subprocess.PIPE,
                    pass_fds=[number],
                    start_new_session=True,
                )
                self._calls = mmap.mmap(number, len(self._slots) * _SLOT)
        except OSError:  # There is no shell or no disk space. Continue, since the report is optional.
            self._close()
        return None

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        offset, calls = self._slots.get((site.trainer, stage)), self._calls
        if offset is None or calls is None:
            return work()
        text = abrupt_exit_message(f"{stage} of {site.place} at step {site.step}")
        calls[offset : offset + _SLOT] = f"{text}\n".encode()[-_SLOT:].ljust(_SLOT, b"\0")
        try:
            return work()
        finally:
            calls[offset : offset + _SLOT] = bytes(_SLOT)

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        self._close()
        return None

    def on_failure(self, error: BaseException, summary: dict[str, Any]) -> None:
        self._close()

    def on_abort(self) -> None:
        # The process exits regularly, so no driver is the cause.
        self._close()

    def _close(self) -> None:
        """Stop reporting. A thread that hangs in a call may still write to the file."""
        if self._calls is not None:
            self._calls[:] = bytes(len(self._calls))
        self._calls = None
        if self._monitor is not None:
            self._monitor.communicate()
        self._monitor = None


def hooks_from_environment(rank: int = 0, size: int = 1) -> list[Hook]:
    """Return the hook for fault injection if HYRT_FAULT is set, otherwise nothing (without an import).

    `rank` is this process, and `size` the number of ranks. Raises ConfigError if HYRT_FAULT cannot be parsed.
    """
    text = os.environ.get("HYRT_FAULT", "")
    if not text:
        return []
    from hyrt.telemetry.faults import FaultInjectionHook, parse_faults

    return [FaultInjectionHook(parse_faults(text), rank, size)]
