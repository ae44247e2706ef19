"""Checks of a run's settings: are they valid, does the dataset exist, and do both fit the machine?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyrt.doctor.finding import DoctorFinding, broken, note, ok, warning
from hyrt.doctor.software_checks import DEFAULT_KINDS
from hyrt.errors import one_line
from hyrt.formatting import format_bytes
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

# Devices of a run without settings.
_DEFAULT_DEVICES = ("cpu",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """Settings of a run, as the user gives them."""

    words: tuple[str, ...] = ()
    """Settings file and overrides, as command-line arguments."""
    options: Mapping[str, str | None]
    """Overrides by key, with `__` instead of a dot; None if not set."""

    @property
    def has_settings(self) -> bool:
        """Return whether there are settings of a run; otherwise only the machine is checked."""
        return bool(self.words) or any(value is not None for value in self.options.values())


def probe_settings(
    children: IsolatedWorker, request: DoctorRequest, devices: Sequence[Mapping[str, Any]], limit_s: float
) -> Answer | None:
    """Read the settings in the worker process; return None without settings."""
    if not request.has_settings:
        return None
    return children.query(
        "hyrt.doctor.probes.settings:probe_run_settings",
        ["settings"],
        limit_s=limit_s,
        words=list(request.words),
        options=dict(request.options),
        found=[dict(info) for info in devices],
    )["settings"]


def requested_devices(answer: Answer | None) -> list[str]:
    """Return the names of the devices that the run uses."""
    config = None if answer is None else answer.first_value("config")
    return list(_DEFAULT_DEVICES if config is None else config["devices"])


def requested_kinds(answer: Answer | None) -> Mapping[str, str]:
    """Return the sampler, model and objective of the run."""
    kinds = None if answer is None else answer.first_value("kinds")
    return DEFAULT_KINDS if kinds is None else kinds


def evaluate_settings(answer: Answer | None, usable_cpus: int) -> list[DoctorFinding]:
    """Return the findings on settings, dataset, threads and device memory; empty without settings."""
    if answer is None:
        return []
    problems = [event for event in answer.messages if "wrong" in event]
    if answer.problem:
        remedy = (
            "see the lines on the packages above; `hyrt run --print-config` with the same arguments says more"
        )
        return broken("settings", f"cannot be read: {answer.problem}", remedy)
    findings: list[DoctorFinding] = []
    config = answer.first_value("config")
    if config is not None:
        found = f"{config['file'] or 'as given'}: {config['source']} on {', '.join(config['devices'])}"
        findings += [*ok("settings", found, config), *_threads(config["threads"], usable_cpus)]
    findings += [_settings_problem(event["wrong"], event["why"], event.get("remedy")) for event in problems]
    data = answer.first_value("data")
    if data is not None:
        sizes = answer.first_value("sizes")
        memory_text = f"{format_bytes(sizes['memory_bytes'])} in memory"
        memory_text += f", {format_bytes(sizes['mapped_bytes'])} mapped" if sizes["mapped_bytes"] else ""
        findings += ok("data", f"{data}: {memory_text}", sizes)
    unknown = answer.first_value("unknown")
    if unknown is not None:
        findings += note("data", f"the memory that it needs is not estimated, because {unknown}")
    needs = answer.first_value("needs")
    if needs is not None:
        for name, memory in needs["devices"].items():
            findings += _device_memory(name, memory["need_bytes"], memory["have_bytes"])
    return findings


def _settings_problem(check: str, reason: str, remedy: str | None) -> DoctorFinding:
    remedy = remedy or "correct the setting; `hyrt run --print-config` lists all settings"
    if check == "data":
        remedy = (
            "pip install 'hyrt[ogb]'"
            if "ogb package" in reason
            else "give another data.source, or repair it: hyrt data info"
        )
    return DoctorFinding(check, "broken", one_line(reason), remedy)


def _threads(threads: Mapping[str, int], usable_cpus: int) -> list[DoctorFinding]:
    over = [f"runtime.{name}={count}" for name, count in threads.items() if count > usable_cpus]
    if not over:
        return []
    found = (
        f"{', '.join(over)}: more than the {usable_cpus} CPUs that a run may use, so they wait for each other"
    )
    remedy = f"lower them to {usable_cpus} or less, or set them to 0, which chooses"
    return warning("threads", found, remedy, {**threads, "usable": usable_cpus})


def _device_memory(name: str, needed: int, available: int | None) -> list[DoctorFinding]:
    figures = {"need_bytes": needed, "have_bytes": available}
    if available is None or needed <= available:
        capacity = "" if available is None else f" of {format_bytes(available)}"
        text = f"{name} needs about {format_bytes(needed)}{capacity}"
        return ok("device memory", text, figures)
    found = (
        f"{name} would need about {format_bytes(needed)} of {format_bytes(available)}: "
        "its share of each step will shrink"
    )
    remedy = f"give it a smaller share (--devices cpu=1,{name}=1), or lower data.batch_size or sampler.fanout"
    return warning("device memory", f"{found} until it fits", remedy, figures)
