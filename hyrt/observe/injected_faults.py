"""The hook that lets the faults of HYRT_FAULT happen in a run."""

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
    """What the kind `base` raises."""


@dataclass(slots=True)
class _Armed:
    fault: Fault
    first_step: int
    has_happened: bool = False


class InjectedFaults(Hook):
    """The faults of one run.

    Parameters
    ----------
    wanted
        The faults that were asked for, at all ranks.
    rank, size
        The number of this process among those that train together, and how many there are.
    """

    def __init__(self, wanted: Sequence[Fault], rank: int = 0, size: int = 1) -> None:
        self._wanted = wanted
        self._rank = rank
        self._size = size
        self._armed: list[_Armed] = []
        self._lock = threading.Lock()
        # As of every device: a fault is terminal.
        self._terminal: dict[str, DeviceFault] = {}

    def begin(self, devices: Sequence[Device], steps: range) -> Notice:
        """Arm the faults.

        Raises
        ------
        ConfigError
            If a fault is of a trainer or of a rank that the run does not have.
        """
        names = [device.info.name for device in devices]
        for fault in self._wanted:
            if fault.rank is not None and fault.rank >= self._size:
                raise ConfigError(
                    f"{VARIABLE}: {str(fault)!r}: the run has {counted(self._size, 'rank')}, numbered from 0"
                )
        own = [fault for fault in self._wanted if fault.rank in (None, self._rank)]
        for fault in own:
            if fault.stage not in (*OF_HOST, "checkpoint") and fault.place not in (*names, "*"):
                raise ConfigError(
                    f"{VARIABLE}: {fault.place!r} of {fault.stage} is not a trainer of this run: "
                    f"{', '.join(names)}"
                )
        self._armed = [_Armed(fault, fault.first_step(steps.stop)) for fault in own]
        return Notice(kind="warning", text=self._warning)

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Let what is due happen before the work, or to its result."""
        if stage == "checkpoint":
            # Its faults are of the operations of the write.
            return work()
        if site.place in self._terminal and stage in ("transfer", "propagate", "update"):
            raise self._terminal[site.place]
        kind = self._strike(stage, site.place, site.step)
        result = work()
        if kind in ("nan-loss", "nan-gradient"):
            return cast(T, _spoiled(cast(StepResult, result), kind))
        return result

    def before_write(self, step: int, operation: str) -> None:
        """Let a fault of a checkpoint happen in place of an operation of its write."""
        self._strike("checkpoint", operation, step)

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Say in the summary that this was a test, and which faults have not happened."""
        left = [armed.fault for armed in self._armed if not armed.has_happened]
        missed = f"did not happen: {_listed(left)}"
        summary["faults"] = f"{self._warning}; {missed}" if left else self._warning
        return Notice(kind="warning", text=f"an injected fault {missed}") if left else None

    @property
    def _warning(self) -> str:
        return f"faults are injected into this run ({VARIABLE}={_listed(self._wanted)}): it is a test"

    def _due(self, stage: str, place: str, step: int) -> str | None:
        """The kind of fault that happens now, if one does."""
        for armed in self._armed:
            fault = armed.fault
            if fault.stage != stage or fault.place not in (place, "*") or step < armed.first_step:
                continue
            with self._lock:
                if armed.has_happened and not fault.stays:
                    continue
                armed.has_happened = True
            return fault.kind
        return None

    def _strike(self, stage: str, place: str, step: int) -> str | None:
        """Let what is due happen; returns the kind, where the caller has to do it."""
        kind = self._due(stage, place, step)
        if kind is None:
            return None
        if kind != "slow":
            # On the machine's clock: tests measure from here.
            print(
                f"fault injected at {time.monotonic():.3f} s: {stage} on {place} at step {step}: {kind}",
                file=sys.stderr,
            )
        what = f"injected in {stage} on {place} at step {step}"
        match kind:
            case "raise":
                raise RuntimeError(what)
            case "base":
                raise InjectedExit(what)
            case "exit":
                # What `_thread.exit()` does.
                raise SystemExit
            case "leave":
                raise ChannelClosed(what)
            case "hang":
                threading.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slow":
                time.sleep(_SLOW_S)
            case "oom":
                raise DeviceOutOfMemory(f"{place}: out of memory, {what}")
            case "fault":
                self._terminal[place] = DeviceFault(f"{place}: {what}")
                raise self._terminal[place]
            case "enospc" | "eio":
                number = getattr(errno, kind.upper())
                raise OSError(number, os.strerror(number))
        return kind


def _spoiled(result: StepResult, kind: str) -> StepResult:
    if kind == "nan-loss":
        return replace(result, loss_sum=float("nan"))
    *others, last = (gradient.clone() for gradient in result.gradients)
    last.view(-1)[-1] = float("nan")
    return replace(result, gradients=[*others, last])


def _listed(faults: Sequence[Fault]) -> str:
    return ", ".join(map(str, faults))
