"""Hook that injects the faults of HYRT_FAULT into a run."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from hyrt.device import Device, StepResult
from hyrt.errors import ConfigError, DeviceFault, DeviceOutOfMemory
from hyrt.flow.channel import ChannelClosed
from hyrt.observe.events import Notice
from hyrt.observe.faults import OF_HOST, VARIABLE, Fault
from hyrt.observe.hook import Hook, Site
from hyrt.quantities import counted

T = TypeVar("T")

_SLOW_S = 0.1


class InjectedExit(BaseException):
    """Exception of the fault kind `base`."""


@dataclass(slots=True)
class _PendingFault:
    fault: Fault
    first_step: int
    has_happened: bool = False


class InjectedFaults(Hook):
    """Injected faults of one run.

    Parameters
    ----------
    wanted
        Requested faults, for all ranks.
    rank, size
        Rank of this process and number of ranks.
    """

    def __init__(self, wanted: Sequence[Fault], rank: int = 0, size: int = 1) -> None:
        self._faults = wanted
        self._rank = rank
        self._size = size
        self._pending: list[_PendingFault] = []
        self._lock = threading.Lock()
        # A fault is terminal for its device, as for every device.
        self._terminal: dict[str, DeviceFault] = {}

    def begin(self, devices: Sequence[Device], steps: range) -> Notice:
        """Arm the faults.

        Raises
        ------
        ConfigError
            If the run does not have the trainer or the rank of a fault.
        """
        names = [device.info.name for device in devices]
        for fault in self._faults:
            if fault.rank is not None and fault.rank >= self._size:
                raise ConfigError(
                    f"{VARIABLE}: {str(fault)!r}: the run has {counted(self._size, 'rank')}, numbered from 0"
                )
        local = [fault for fault in self._faults if fault.rank in (None, self._rank)]
        for fault in local:
            if fault.stage not in (*OF_HOST, "checkpoint") and fault.place not in (*names, "*"):
                raise ConfigError(
                    f"{VARIABLE}: {fault.place!r} of {fault.stage} is not a trainer of this run: "
                    f"{', '.join(names)}"
                )
        self._pending = [_PendingFault(fault, fault.first_step(steps.stop)) for fault in local]
        return Notice(kind="warning", text=self._warning)

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Inject the faults that are due before the work, or into its result."""
        if stage == "checkpoint":
            # Checkpoint faults are injected into the operations of the write.
            return work()
        if site.place in self._terminal and stage in ("transfer", "propagate", "update"):
            raise self._terminal[site.place]
        kind = self._inject(stage, site.place, site.step)
        result = work()
        if kind in ("nan-loss", "nan-gradient"):
            return cast(T, _corrupt_result(cast(StepResult, result), kind))
        return result

    def before_write(self, step: int, operation: str) -> None:
        """Inject a checkpoint fault in place of this write operation."""
        self._inject("checkpoint", operation, step)

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Record in the summary that faults were injected, and which faults did not happen."""
        pending = [entry.fault for entry in self._pending if not entry.has_happened]
        missed = f"did not happen: {_join_faults(pending)}"
        summary["faults"] = f"{self._warning}; {missed}" if pending else self._warning
        return Notice(kind="warning", text=f"an injected fault {missed}") if pending else None

    @property
    def _warning(self) -> str:
        return f"faults are injected into this run ({VARIABLE}={_join_faults(self._faults)}): it is a test"

    def _due(self, stage: str, place: str, step: int) -> str | None:
        """Return the kind of the fault that is due now, or None."""
        for entry in self._pending:
            fault = entry.fault
            if fault.stage != stage or fault.place not in (place, "*") or step < entry.first_step:
                continue
            with self._lock:
                if entry.has_happened and not fault.stays:
                    continue
                entry.has_happened = True
            return fault.kind
        return None

    def _inject(self, stage: str, place: str, step: int) -> str | None:
        """Inject the fault that is due; return its kind, because the caller has to apply some kinds to the
        result.
        """
        kind = self._due(stage, place, step)
        if kind is None:
            return None
        if kind != "slow":
            # In monotonic time, from which tests measure the delay.
            print(
                f"fault injected at {time.monotonic():.3f} s: {stage} on {place} at step {step}: {kind}",
                file=sys.stderr,
            )
        description = f"injected in {stage} on {place} at step {step}"
        match kind:
            case "raise":
                raise RuntimeError(description)
            case "base":
                raise InjectedExit(description)
            case "exit":
                # Equivalent of `_thread.exit()`.
                raise SystemExit
            case "leave":
                raise ChannelClosed(description)
            case "hang":
                threading.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slow":
                time.sleep(_SLOW_S)
            case "oom":
                raise DeviceOutOfMemory(f"{place}: out of memory, {description}")
            case "fault":
                self._terminal[place] = DeviceFault(f"{place}: {description}")
                raise self._terminal[place]
            case "enospc" | "eio":
                number = getattr(errno, kind.upper())
                raise OSError(number, os.strerror(number))
        return kind


def _corrupt_result(result: StepResult, kind: str) -> StepResult:
    if kind == "nan-loss":
        return replace(result, loss_sum=float("nan"))
    *others, last = (gradient.clone() for gradient in result.gradients)
    last.view(-1)[-1] = float("nan")
    return replace(result, gradients=[*others, last])


def _join_faults(faults: Sequence[Fault]) -> str:
    return ", ".join(map(str, faults))
