"""The settings of a run: whether they can be read, their dataset exists, and they suit the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyrt.doctor.finding import DoctorFinding, broken, note, ok, warning
from hyrt.doctor.software.plug_ins import DEFAULT_KINDS
from hyrt.errors import one_line
from hyrt.machine.child_processes.children import Answer, Children
from hyrt.quantities import size

# What a run without settings trains on.
_DEFAULT_DEVICES = ("cpu",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says of the run."""

    words: tuple[str, ...] = ()
    """A settings file and overrides."""
    options: Mapping[str, str | None]
    """Overrides by key, with `__` for a point; None where not given."""

    @property
    def is_given(self) -> bool:
        """Whether there is anything about a run in it; else only the machine is looked at."""
        return bool(self.words) or any(value is not None for value in self.options.values())


def ask_settings(
    children: Children, asked: Asked, found: Sequence[Mapping[str, Any]], limit_s: float
) -> Answer | None:
    """Read the settings in a child process; None where there are none."""
    if not asked.is_given:
        return None
    return children.ask(
        "hyrt.doctor.children.settings",
        ["settings"],
        limit_s=limit_s,
        words=list(asked.words),
        options=dict(asked.options),
        found=[dict(info) for info in found],
    )["settings"]


def wanted_devices(answer: Answer | None) -> list[str]:
    """The names of the devices that the run uses."""
    config = None if answer is None else answer.first("config")
    return list(_DEFAULT_DEVICES if config is None else config["devices"])


def wanted_kinds(answer: Answer | None) -> Mapping[str, str]:
    """The sampler, model and objective that a run shall use."""
    kinds = None if answer is None else answer.first("kinds")
    return DEFAULT_KINDS if kinds is None else kinds


def judge_settings(answer: Answer | None, usable_cpus: int) -> list[DoctorFinding]:
    """Findings of settings, dataset, threads and device memory; none without settings."""
    if answer is None:
        return []
    problems = [said for said in answer.said if "wrong" in said]
    if answer.problem:
        remedy = (
            "see the lines on the packages above; `hyrt run --print-config` with the same arguments says more"
        )
        return broken("settings", f"cannot be read: {answer.problem}", remedy)
    findings: list[DoctorFinding] = []
    config = answer.first("config")
    if config is not None:
        found = f"{config['file'] or 'as given'}: {config['source']} on {', '.join(config['devices'])}"
        findings += [*ok("settings", found, config), *_threads(config["threads"], usable_cpus)]
    findings += [_wrong(said["wrong"], said["why"], said.get("remedy")) for said in problems]
    data = answer.first("data")
    if data is not None:
        sizes = answer.first("sizes")
        held = f"{size(sizes['memory_bytes'])} in memory"
        held += f", {size(sizes['mapped_bytes'])} mapped" if sizes["mapped_bytes"] else ""
        findings += ok("data", f"{data}: {held}", sizes)
    unknown = answer.first("unknown")
    if unknown is not None:
        findings += note("data", f"the memory that it needs is not estimated, because {unknown}")
    needs = answer.first("needs")
    if needs is not None:
        for name, memory in needs["devices"].items():
            findings += _device_memory(name, memory["need_bytes"], memory["have_bytes"])
    return findings


def _wrong(what: str, why: str, remedy: str | None) -> DoctorFinding:
    remedy = remedy or "correct the setting; `hyrt run --print-config` lists all settings"
    if what == "data":
        remedy = (
            "pip install 'hyrt[ogb]'"
            if "ogb package" in why
            else "give another data.source, or repair it: hyrt data info"
        )
    return DoctorFinding(what, "broken", one_line(why), remedy)


def _threads(threads: Mapping[str, int], usable_cpus: int) -> list[DoctorFinding]:
    over = [f"runtime.{name}={count}" for name, count in threads.items() if count > usable_cpus]
    if not over:
        return []
    found = (
        f"{', '.join(over)}: more than the {usable_cpus} CPUs that a run may use, so they wait for each other"
    )
    remedy = f"lower them to {usable_cpus} or less, or set them to 0, which chooses"
    return warning("threads", found, remedy, {**threads, "usable": usable_cpus})


def _device_memory(name: str, need: int, have: int | None) -> list[DoctorFinding]:
    figures = {"need_bytes": need, "have_bytes": have}
    if have is None or need <= have:
        there = "" if have is None else f" of {size(have)}"
        text = f"{name} needs about {size(need)}{there}"
        return ok("device memory", text, figures)
    found = f"{name} would need about {size(need)} of {size(have)}: its share of each step will shrink"
    remedy = f"give it a smaller share (--devices cpu=1,{name}=1), or lower data.batch_size or sampler.fanout"
    return warning("device memory", f"{found} until it fits", remedy, figures)
