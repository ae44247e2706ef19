"""Fault injection on request, to test how a run reacts to failures.

Off unless the environment variable HYRT_FAULT is set; every injected fault is reported.

HYRT_FAULT is a comma-separated list of `<stage>:<place>:<when>:<kind>`:

- stage: `sample`, `load`, `transfer`, `propagate`, `update` (a trainer receives the weights), `synchronize`,
  `evaluate` or `checkpoint`;
- place: the trainer of the share (`opencl:0`), `host` for synchronize and evaluate, an operation of the
  atomic write for checkpoint (`open`, `write`, `fsync`, `replace`, `sync`); `*` matches any. With several
  ranks, every rank has the fault; a prefix limits the fault to one rank (`rank1.opencl:0`, `rank1.*`);
- when: `first`, `middle` or `last` step, or a step number: the fault happens once, at or after this step;
  `<when>+` repeats the fault at every step from there on. For evaluate and checkpoint a step is the number of
  steps done;
- kind: one of `KINDS`.

The faults are injected by a hook (`hyrt.observe.injected_faults`), which exists only in runs with faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hyrt_perfmodel.assignment import STAGES

from hyrt.errors import ConfigError

VARIABLE = "HYRT_FAULT"
_STAGES = (*STAGES, "update", "evaluate", "checkpoint")
OF_HOST = ("synchronize", "evaluate")
"""Stages that run on the host and belong to no trainer."""
WRITES = ("open", "write", "fsync", "replace", "sync")
_WHEN = ("first", "middle", "last")

KINDS = {
    "raise": "RuntimeError",
    "base": "an exception that `except Exception` does not catch",
    "exit": "the thread raises SystemExit",
    "leave": "the thread ends silently",
    "hang": "the call waits forever",
    "kill": "the process is killed (SIGKILL)",
    "oom": "DeviceOutOfMemory, of transfer and propagate",
    "fault": "DeviceFault, of transfer, propagate and update; terminal",
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
    """One requested fault."""

    stage: str
    place: str
    when: str
    kind: str
    """`stage`, `place`, `when` and `kind` as in the environment variable; the place has no rank prefix."""
    rank: int | None = None
    """Rank that has the fault; None for all ranks."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank{self.rank}."
        return f"{self.stage}:{rank}{self.place}:{self.when}:{self.kind}"

    @property
    def stays(self) -> bool:
        """Whether the fault repeats at every step from the first one on."""
        return self.when.endswith("+")

    def first_step(self, num_steps: int) -> int:
        """Return the first step at which the fault can happen, in a run of `num_steps` steps."""
        when = self.when.removesuffix("+")
        if when not in _WHEN:
            return int(when)
        last = num_steps if self.stage in ("evaluate", "checkpoint") else num_steps - 1
        return {"first": 0, "middle": num_steps // 2, "last": last}[when]


def parse_faults(text: str) -> list[Fault]:
    """Parse the value of HYRT_FAULT.

    Raises
    ------
    ConfigError
        Naming the entry and its problem.
    """
    return [_parse(entry.strip()) for entry in text.split(",")]


def _parse(entry: str) -> Fault:
    parts = entry.split(":")
    if len(parts) < 4:
        raise ConfigError(f"{VARIABLE}: {entry!r} is not <stage>:<place>:<when>:<kind>")
    rank, place = _rank_and_place(":".join(parts[1:-2]))
    fault = Fault(parts[0], place, parts[-2], parts[-1], rank)
    when = fault.when.removesuffix("+")
    if fault.stage not in _STAGES:
        raise ConfigError(f"{VARIABLE}: {entry!r}: the stages are {', '.join(_STAGES)}")
    if when not in _WHEN and not when.isdecimal():
        raise ConfigError(
            f"{VARIABLE}: {entry!r}: give first, middle, last or the number of a step as <when>, "
            "optionally with a +"
        )
    if fault.kind not in KINDS:
        raise ConfigError(f"{VARIABLE}: {entry!r}: the kinds are {', '.join(KINDS)}")
    special = {kind for kinds in _BY_STAGE.values() for kind in kinds}
    if fault.kind in special and fault.kind not in _BY_STAGE.get(fault.stage, ()):
        stages = ", ".join(stage for stage, kinds in _BY_STAGE.items() if fault.kind in kinds)
        raise ConfigError(f"{VARIABLE}: {entry!r}: the kind {fault.kind} belongs to {stages}")
    if fault.stage == "checkpoint" and fault.place not in (*WRITES, "*"):
        raise ConfigError(f"{VARIABLE}: {entry!r}: the places of checkpoint are {', '.join(WRITES)} and *")
    if fault.stage == "checkpoint" and fault.rank:
        raise ConfigError(f"{VARIABLE}: {entry!r}: checkpoints are written by rank 0")
    if fault.stage in OF_HOST and fault.place not in ("host", "*"):
        raise ConfigError(f"{VARIABLE}: {entry!r}: the place of {fault.stage} is host")
    return fault


def _rank_and_place(text: str) -> tuple[int | None, str]:
    """Split a place such as `rank1.cpu:0` into rank and place."""
    match = re.fullmatch(r"rank([0-9]+)\.(.+)", text)
    return (int(match[1]), match[2]) if match else (None, text)
