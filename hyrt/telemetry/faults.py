"""Fault injection on request, to test how a run reacts to failures.

Runs have faults only if the environment variable HYRT_FAULT is set, and every injected fault is reported.
HYRT_FAULT is a comma-separated list of `<stage>:<place>:<when>:<kind>`:

- stage: `sample`, `load`, `transfer`, `propagate`, `update` (a trainer receives the weights), `synchronize`,
  `evaluate` or `checkpoint`;
- place: the trainer of the share (`opencl:0`), `host` for synchronize and evaluate, or an operation of the
  atomic write for checkpoint (`open`, `write`, `fsync`, `replace`, `sync`); `*` matches any. With several
  ranks, every rank has the fault; a prefix limits the fault to one rank (`rank1.opencl:0`, `rank1.*`);
- when: `first`, `middle` or `last` step, or a step number: the fault happens once, at or after this step;
  `<when>+` repeats the fault at every step from there on. For evaluate and checkpoint, a step is the number
  of finished steps;
- kind: one of `KINDS`.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from hyrt_perfmodel.policy import STAGES

from hyrt.device import Device, StepResult
from hyrt.errors import ConfigError, DeviceFaultError, DeviceOutOfMemoryError
from hyrt.formatting import pluralize
from hyrt.runtime.stage_threads import ChannelClosedError
from hyrt.telemetry.events import Notice
from hyrt.telemetry.hooks import Hook, Site

ENV_VARIABLE = "HYRT_FAULT"
_STAGES = (*STAGES, "update", "evaluate", "checkpoint")
HOST_STAGES = ("synchronize", "evaluate")
"""Stages that run on the host and do not belong to a trainer."""
WRITE_OPERATIONS = ("open", "write", "fsync", "replace", "sync")
_WHEN = ("first", "middle", "last")

KINDS = {
    "raise": "RuntimeError",
    "base": "an exception that `except Exception` does not catch",
    "exit": "the thread raises SystemExit",
    "leave": "the thread ends silently",
    "hang": "the call waits forever",
    "kill": "the process is killed (SIGKILL)",
    "oom": "DeviceOutOfMemoryError, of transfer and propagate",
    "fault": "DeviceFaultError, of transfer, propagate and update; terminal",
    "nan-loss": "propagate returns a loss that is not finite",
    "nan-gradient": "propagate returns a gradient that is not finite",
    "slow": "the call takes 0.1 s longer",
    "enospc": "no space left on the device, of checkpoint",
    "eio": "input/output error, of checkpoint",
}
_BY_STAGE: Mapping[str, tuple[str, ...]] = {
    "transfer": ("oom", "fault"),
    "propagate": ("oom", "fault", "nan-loss", "nan-gradient"),
    "update": ("fault",),
    "checkpoint": ("enospc", "eio"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault that the environment variable requests."""

    stage: str
    place: str
    when: str
    kind: str
    """Kind of the fault. The first four fields are as in the environment variable, without rank prefix."""
    rank: int | None = None
    """Rank that has the fault; None for all ranks."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank{self.rank}."
        return f"{self.stage}:{rank}{self.place}:{self.when}:{self.kind}"

    @property
    def is_persistent(self) -> bool:
        """Whether the fault is repeated at every later step."""
        return self.when.endswith("+")

    def first_step(self, num_steps: int) -> int:
        """Return the first step at which the fault can happen, in a run of `num_steps` steps."""
        when = self.when.removesuffix("+")
        if when not in _WHEN:
            return int(when)
        last = num_steps if self.stage in ("evaluate", "checkpoint") else num_steps - 1
        return {"first": 0, "middle": num_steps // 2, "last": last}[when]


def parse_faults(text: str) -> list[Fault]:
    """Parse the value of HYRT_FAULT. Raises ConfigError, which names the entry and its problem."""
    return [_parse(entry.strip()) for entry in text.split(",")]


def _parse(entry: str) -> Fault:
    parts = entry.split(":")
    if len(parts) < 4:
        raise ConfigError(f"{ENV_VARIABLE}: {entry!r} must have the form <stage>:<place>:<when>:<kind>")
    rank, place = _rank_and_place(":".join(parts[1:-2]))
    fault = Fault(parts[0], place, parts[-2], parts[-1], rank)
    when = fault.when.removesuffix("+")
    if fault.stage not in _STAGES:
        raise ConfigError(f"{ENV_VARIABLE}: the stage of {entry!r} must be one of {', '.join(_STAGES)}")
    if when not in _WHEN and not when.isdecimal():
        raise ConfigError(
            f"{ENV_VARIABLE}: <when> of {entry!r} must be first, middle, last or a step number, "
            "optionally followed by +"
        )
    if fault.kind not in KINDS:
        raise ConfigError(f"{ENV_VARIABLE}: the kind of {entry!r} must be one of {', '.join(KINDS)}")
    special = {kind for kinds in _BY_STAGE.values() for kind in kinds}
    if fault.kind in special and fault.kind not in _BY_STAGE.get(fault.stage, ()):
        stages = " or ".join(stage for stage, kinds in _BY_STAGE.items() if fault.kind in kinds)
        raise ConfigError(
            f"{ENV_VARIABLE}: {entry!r} must name the stage {stages}, which can have {fault.kind}"
        )
    if fault.stage == "checkpoint" and fault.place not in (*WRITE_OPERATIONS, "*"):
        raise ConfigError(
            f"{ENV_VARIABLE}: the place of {entry!r} must be one of {', '.join(WRITE_OPERATIONS)} or *"
        )
    if fault.stage == "checkpoint" and fault.rank:
        raise ConfigError(
            f"{ENV_VARIABLE}: the rank of {entry!r} must be 0, because only rank 0 writes checkpoints"
        )
    if fault.stage in HOST_STAGES and fault.place not in ("host", "*"):
        raise ConfigError(
            f"{ENV_VARIABLE}: the place of {entry!r} must be host, because {fault.stage} runs on the host"
        )
    return fault


def _rank_and_place(text: str) -> tuple[int | None, str]:
    """Split a place such as `rank1.cpu:0` into the rank, or None, and the place within the rank."""
    match = re.fullmatch(r"rank([0-9]+)\.(.+)", text)
    return (int(match[1]), match[2]) if match else (None, text)


T = TypeVar("T")

_SLOW_S = 0.1


class InjectedExitError(BaseException):
    """Exception that the fault kind `base` raises."""


@dataclass(slots=True)
class _PendingFault:
    fault: Fault
    first_step: int
    has_happened: bool = False


class FaultInjectionHook(Hook):
    """Hook that injects the faults of one run.

    `faults` are the requested faults of all ranks, `rank` is this process, and `size` the number of ranks.
    """

    def __init__(self, faults: Sequence[Fault], rank: int = 0, size: int = 1) -> None:
        self._faults = faults
        self._rank = rank
        self._size = size
        self._pending: list[_PendingFault] = []
        self._lock = threading.Lock()
        # A device that has failed must fail again in every later call.
        self._terminal: dict[str, DeviceFaultError] = {}

    def on_start(self, devices: Sequence[Device], steps: range) -> Notice:
        """Arm the faults. Raises ConfigError if the run does not have the trainer or the rank of a fault."""
        names = [device.info.name for device in devices]
        for fault in self._faults:
            if fault.rank is not None and fault.rank >= self._size:
                raise ConfigError(
                    f"{ENV_VARIABLE}: the rank of {str(fault)!r} does not exist, because the run has "
                    f"{pluralize(self._size, 'rank')}, numbered from 0"
                )
        local = [fault for fault in self._faults if fault.rank in (None, self._rank)]
        for fault in local:
            if fault.stage not in (*HOST_STAGES, "checkpoint") and fault.place not in (*names, "*"):
                raise ConfigError(
                    f"{ENV_VARIABLE}: {fault.place!r}, the place of {fault.stage}, is not a trainer of "
                    f"this run: choose one of {', '.join(names)}"
                )
        self._pending = [_PendingFault(fault, fault.first_step(steps.stop)) for fault in local]
        return Notice(kind="warning", text=self._warning)

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Inject the faults that are due before the work, or in its result."""
        if stage == "checkpoint":
            # Checkpoint faults are injected by `before_write`, into the operations of the write.
            return work()
        if site.place in self._terminal and stage in ("transfer", "propagate", "update"):
            raise self._terminal[site.place]
        kind = self._inject(stage, site.place, site.step)
        result = work()
        if kind in ("nan-loss", "nan-gradient"):
            return cast(T, _corrupt_result(cast(StepResult, result), kind))
        return result

    def before_write(self, step: int, operation: str) -> None:
        """Inject a checkpoint fault in place of a write operation."""
        self._inject("checkpoint", operation, step)

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        """Record in the summary that faults were injected, and which faults did not happen."""
        pending = [entry.fault for entry in self._pending if not entry.has_happened]
        missed = f"did not happen: {_join_faults(pending)}"
        summary["faults"] = f"{self._warning}; {missed}" if pending else self._warning
        return Notice(kind="warning", text=f"an injected fault {missed}") if pending else None

    @property
    def _warning(self) -> str:
        return (
            f"faults are injected into this run ({ENV_VARIABLE}={_join_faults(self._faults)}): it is a test"
        )

    def _due(self, stage: str, place: str, step: int) -> str | None:
        """Return the kind of the fault that is due now, or None."""
        for entry in self._pending:
            fault = entry.fault
            if fault.stage != stage or fault.place not in (place, "*") or step < entry.first_step:
                continue
            with self._lock:
                if entry.has_happened and not fault.is_persistent:
                    continue
                entry.has_happened = True
            return fault.kind
        return None

    def _inject(self, stage: str, place: str, step: int) -> str | None:
        """Inject the fault that is due; return its kind, because the caller must apply some kinds."""
        kind = self._due(stage, place, step)
        if kind is None:
            return None
        if kind != "slow":
            # Print the monotonic time, from which tests measure delays.
            print(
                f"fault injected at {time.monotonic():.3f} s: {stage} on {place} at step {step}: {kind}",
                file=sys.stderr,
            )
        description = f"injected in {stage} on {place} at step {step}"
        match kind:
            case "raise":
                raise RuntimeError(description)
            case "base":
                raise InjectedExitError(description)
            case "exit":
                # `_thread.exit()` does the same.
                raise SystemExit
            case "leave":
                raise ChannelClosedError(description)
            case "hang":
                threading.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slow":
                time.sleep(_SLOW_S)
            case "oom":
                raise DeviceOutOfMemoryError(f"{place}: out of memory, {description}")
            case "fault":
                self._terminal[place] = DeviceFaultError(f"{place}: {description}")
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
