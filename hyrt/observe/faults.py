"""Faults on request, for tests of what a run does when something fails. Off unless HYRT_FAULT is set, and never silent.

HYRT_FAULT is a list, separated by commas, of `<stage>:<place>:<when>:<kind>`:

- stage: `sample`, `load`, `transfer`, `propagate`, `update` (a trainer takes the weights), `synchronize`, `checkpoint`;
- place: the trainer whose share it is (`opencl:0`), `host` for synchronize, an operation of the atomic write for checkpoint
  (`open`, `write`, `fsync`, `replace`, `sync`); `*` is any;
- when: `first`, `middle` or `last` step, or a step's number, at which or after which it happens once; `<when>+` is from
  there on always. For checkpoint a step is the number of steps done;
- kind: one of `KINDS`.

They are put between the parts of a run (`hyrt.training.faulty_parts`): a run without them has none of those, and pays for
none.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hyrt.errors import ConfigError, DeviceFault, DeviceOutOfMemory
from hyrt.flow.channel import ChannelClosed

VARIABLE = "HYRT_FAULT"
STAGES = ("sample", "load", "transfer", "propagate", "update", "synchronize", "checkpoint")
WRITES = ("open", "write", "fsync", "replace", "sync")
_WHEN = ("first", "middle", "last")

KINDS = {
    "raise": "RuntimeError",
    "base": "an exception that `except Exception` does not catch",
    "exit": "the thread is asked to exit (SystemExit)",
    "leave": "the thread leaves its loop without a word",
    "hang": "waits for ever",
    "oom": "DeviceOutOfMemory, of transfer and propagate",
    "fault": "DeviceFault, of transfer, propagate and update; terminal",
    "nan-loss": "propagate hands back a loss that is not finite",
    "nan-gradient": "propagate hands back a gradient that is not finite",
    "slow": "takes a tenth of a second more",
    "enospc": "no space left on the device, of checkpoint",
    "eio": "input/output error, of checkpoint",
}
_SLOW_S = 0.1
_BY_STAGE: Mapping[str, tuple[str, ...]] = {
    "transfer": ("oom", "fault"),
    "propagate": ("oom", "fault", "nan-loss", "nan-gradient"),
    "update": ("fault",),
    "checkpoint": ("enospc", "eio"),
}


class InjectedExit(BaseException):
    """What the kind `base` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that was asked for.

    Parameters
    ----------
    stage, place, when, kind
        As in the environment variable.
    """

    stage: str
    place: str
    when: str
    kind: str

    @property
    def stays(self) -> bool:
        """Whether it happens at every step from the first on."""
        return self.when.endswith("+")

    def first_step(self, num_steps: int) -> int:
        """The step from which it can happen, of a run of that many."""
        when = self.when.removesuffix("+")
        if when not in _WHEN:
            return int(when)
        last = num_steps if self.stage == "checkpoint" else num_steps - 1
        return {"first": 0, "middle": num_steps // 2, "last": last}[when]


def parse_faults(text: str) -> list[Fault]:
    """Read what HYRT_FAULT holds.

    Raises
    ------
    ConfigError
        Naming the entry and what is wrong with it.
    """
    return [_parse(entry.strip()) for entry in text.split(",")]


def _parse(entry: str) -> Fault:
    parts = entry.split(":")
    if len(parts) < 4:
        raise ConfigError(f"{VARIABLE}: {entry!r} is not <stage>:<place>:<when>:<kind>")
    fault = Fault(parts[0], ":".join(parts[1:-2]), parts[-2], parts[-1])
    when = fault.when.removesuffix("+")
    if fault.stage not in STAGES:
        raise ConfigError(f"{VARIABLE}: {entry!r}: the stages are {', '.join(STAGES)}")
    if when not in _WHEN and not when.isdecimal():
        raise ConfigError(
            f"{VARIABLE}: {entry!r}: when is first, middle, last or a step's number, perhaps with a +"
        )
    if fault.kind not in KINDS:
        raise ConfigError(f"{VARIABLE}: {entry!r}: the kinds are {', '.join(KINDS)}")
    special = {kind for kinds in _BY_STAGE.values() for kind in kinds}
    if fault.kind in special and fault.kind not in _BY_STAGE.get(fault.stage, ()):
        stages = ", ".join(stage for stage, kinds in _BY_STAGE.items() if fault.kind in kinds)
        raise ConfigError(f"{VARIABLE}: {entry!r}: {fault.kind} is a fault of {stages}")
    if fault.stage == "checkpoint" and fault.place not in (*WRITES, "*"):
        raise ConfigError(f"{VARIABLE}: {entry!r}: the places of checkpoint are {', '.join(WRITES)} and *")
    if fault.stage == "synchronize" and fault.place not in ("host", "*"):
        raise ConfigError(f"{VARIABLE}: {entry!r}: the place of synchronize is host")
    return fault


@dataclass(slots=True)
class _Armed:
    fault: Fault
    first_step: int
    has_happened: bool = False


@dataclass(slots=True)
class Faults:
    """The faults of one run.

    Parameters
    ----------
    wanted
        Which.
    num_steps
        Of the whole run.
    """

    wanted: Sequence[Fault]
    num_steps: int
    _armed: list[_Armed] = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._armed = [_Armed(fault, fault.first_step(self.num_steps)) for fault in self.wanted]

    @property
    def warning(self) -> str:
        """What the run says of itself."""
        return f"faults are injected into this run ({VARIABLE}={_listed(self.wanted)}): it is a test"

    @property
    def outstanding(self) -> str:
        """What to say of those that have not happened; empty where all have."""
        left = [armed.fault for armed in self._armed if not armed.has_happened]
        return f"did not happen: {_listed(left)}" if left else ""

    def due(self, stage: str, place: str, step: int) -> str | None:
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

    def strike(self, stage: str, place: str, step: int) -> str | None:
        """Let happen what is due; the kind, where the caller has to do it."""
        kind = self.due(stage, place, step)
        if kind is None:
            return None
        what = f"injected in {stage} on {place} at step {step}"
        if kind != "slow":
            # On the machine's clock: tests measure from here.
            print(
                f"fault injected at {time.monotonic():.3f} s: {stage} on {place} at step {step}: {kind}",
                file=sys.stderr,
            )
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
            case "slow":
                time.sleep(_SLOW_S)
            case "oom":
                raise DeviceOutOfMemory(f"{place}: out of memory, {what}")
            case "fault":
                raise DeviceFault(f"{place}: {what}")
            case "enospc":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "eio":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return kind


def _listed(faults: Sequence[Fault]) -> str:
    return ", ".join(f"{f.stage}:{f.place}:{f.when}:{f.kind}" for f in faults)


def injected_faults(num_steps: int) -> Faults | None:
    """What the environment asks for; None, as a rule.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    text = os.environ.get(VARIABLE, "")
    return Faults(parse_faults(text), num_steps) if text else None
