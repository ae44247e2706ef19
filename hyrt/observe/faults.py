"""Faults on request, for tests of what a run does when something fails.

They are off unless HYRT_FAULT is set, and never silent.

HYRT_FAULT is a list, separated by commas, of `<stage>:<place>:<when>:<kind>`:

- stage: `sample`, `load`, `transfer`, `propagate`, `update` (a trainer takes the weights), `synchronize`,
  `evaluate` or `checkpoint`;
- place: the trainer whose share it is (`opencl:0`), `host` for synchronize and evaluate, an operation of the
  atomic write for checkpoint (`open`, `write`, `fsync`, `replace`, `sync`); `*` is any. Where several ranks
  train together, each has the fault, but with a rank in front of the place (`rank1.opencl:0`, `rank1.*`) that
  one alone has it;
- when: `first`, `middle` or `last` step, or a step's number, at which or after which it happens once;
  `<when>+` is from there on always. For evaluate and checkpoint a step is the number of steps done;
- kind: one of `KINDS`.

They are injected by a hook (`hyrt.observe.injected_faults`), which a run without them does not have.
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
"""The stages that belong to no trainer."""
WRITES = ("open", "write", "fsync", "replace", "sync")
_WHEN = ("first", "middle", "last")

KINDS = {
    "raise": "RuntimeError",
    "base": "an exception that `except Exception` does not catch",
    "exit": "the thread is asked to exit (SystemExit)",
    "leave": "the thread leaves its loop without a word",
    "hang": "waits for ever",
    "kill": "the process is killed (SIGKILL)",
    "oom": "DeviceOutOfMemory, of transfer and propagate",
    "fault": "DeviceFault, of transfer, propagate and update; terminal",
    "nan-loss": "propagate hands back a loss that is not finite",
    "nan-gradient": "propagate hands back a gradient that is not finite",
    "slow": "takes a tenth of a second more",
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
    """One fault that was asked for."""

    stage: str
    place: str
    when: str
    kind: str
    """`stage`, `place`, `when` and `kind`: as in the environment variable, the place without its rank."""
    rank: int | None = None
    """The rank that has the fault; None for all."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank{self.rank}."
        return f"{self.stage}:{rank}{self.place}:{self.when}:{self.kind}"

    @property
    def stays(self) -> bool:
        """Whether it happens at every step from the first on."""
        return self.when.endswith("+")

    def first_step(self, num_steps: int) -> int:
        """The step from which it can happen, of a run of that many."""
        when = self.when.removesuffix("+")
        if when not in _WHEN:
            return int(when)
        last = num_steps if self.stage in ("evaluate", "checkpoint") else num_steps - 1
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
    """`rank1.cpu:0` in two."""
    found = re.fullmatch(r"rank([0-9]+)\.(.+)", text)
    return (int(found[1]), found[2]) if found else (None, text)
