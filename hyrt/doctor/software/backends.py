"""Every declared backend, each asked and tried in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any

from hyrt.device.discovery import BACKENDS
from hyrt.device.names import AUTO, NAME_FORM, NO_NAME
from hyrt.doctor.finding import DoctorFinding, State, broken, note, ok
from hyrt.errors import describe, one_line
from hyrt.machine.child_processes.children import Answer, Children
from hyrt.machine.entry_points import provider
from hyrt.quantities import whole_number


@dataclass(frozen=True, slots=True)
class Backends:
    """What the backends said."""

    declared: Mapping[str, Sequence[EntryPoint]]
    """Entry points by kind; more than one is a conflict."""
    answers: Mapping[str, Answer]
    """The answers of the kinds that were asked, by kind."""
    problem: str = ""
    """Why the declarations cannot be read; then there are none."""

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """Everything that was found, as `hyrt.doctor.children.backends` describes it."""
        return [info for answer in self.answers.values() for found in answer.all("found") for info in found]

    @property
    def own_memory(self) -> list[str]:
        """Real devices that mini-batches are copied to."""
        return [
            info["name"]
            for info in self.devices
            if not (info["zero_copy"] or info["host_cores"] or info["simulated"])
        ]


def ask_backends(children: Children, limit_s: float, threads: int) -> Backends:
    """Let every backend look for its devices and train a step on them."""
    try:
        entries = BACKENDS.declared()
    except Exception as error:  # The metadata of any installed distribution may be damaged.
        return Backends({}, {}, one_line(describe(error)))
    kinds = [kind for kind, those in entries.items() if len(those) == 1]
    return Backends(
        entries, children.ask("hyrt.doctor.children.backends", kinds, limit_s=limit_s, threads=threads)
    )


def judge_backends(
    asked: Backends, wanted: Sequence[str], causes: Sequence[DoctorFinding] = ()
) -> list[DoctorFinding]:
    """Findings; what the settings name and does not work is broken, what they do not name a warning.

    Parameters
    ----------
    asked
        What the backends said.
    wanted
        Names of devices that a run shall use (`kind` or `kind:index`), or `auto`.
    causes
        Findings on packages and kernels: a backend that fails because of one points there.
    """
    if asked.problem:
        found = f"the entry points of the installed distributions cannot be read: {asked.problem}"
        remedy = "run pip check, and reinstall the distribution whose *.dist-info is damaged"
        return broken("backends", found, remedy)
    findings: list[DoctorFinding] = []
    for kind in sorted(asked.declared):
        # One that two packages claim was not asked: nothing else is to blame for that.
        reasons = causes if kind in asked.answers else ()
        findings += [_pointing(finding, reasons) for finding in _judge(kind, asked, wanted)]
    for name in dict.fromkeys(wanted):
        findings += _judge_wanted(name, asked)
    if AUTO in wanted and not any(
        finding.state == "ok" and finding.figures.get("computes") for finding in findings
    ):
        found = "devices=auto found no device that can train"
        findings += broken("devices", found, "see the lines on each backend above")
    return findings


def _judge(kind: str, asked: Backends, wanted: Sequence[str]) -> list[DoctorFinding]:
    check = f"backend {kind}"
    kinds = {name.partition(":")[0] for name in wanted}
    state: State = "broken" if kind in kinds else "warning"
    if kind not in asked.answers:
        owners, remedy = BACKENDS.conflict(list(asked.declared[kind]))
        return [DoctorFinding(check, state, f"is declared by {owners}", remedy)]
    answer = asked.answers[kind]
    package = provider(asked.declared[kind][0])
    figures = {"provider": package, "devices": answer.first("found") or []}
    missing = answer.first("missing")
    if missing is not None:
        # A device that the settings name and is not there has a finding of its own.
        return note(check, one_line(str(missing)), figures)
    findings = [
        each
        for info in answer.first("found") or ()
        for each in _judge_device(info, answer, kind in kinds, AUTO in kinds)
    ]
    if answer.problem and not any(finding.state != "ok" for finding in findings):
        found, remedy = f"{package}: {answer.problem}", _remedy(kind, answer.problem, package)
        findings.append(DoctorFinding(check, state, found, remedy, figures))
    return findings


def _pointing(finding: DoctorFinding, causes: Sequence[DoctorFinding]) -> DoctorFinding:
    """A finding that repeats another's problem sends the reader there; damaged kernels fail in any way."""
    bad = [cause for cause in causes if finding.remedy and cause.state == "broken"]
    repeated = [each for each in bad if finding.found.endswith(each.figures.get("problem") or "\0")]
    for cause in [*repeated, *(each for each in bad if each.figures.get("damaged"))]:
        return replace(finding, remedy=f"first follow the line on {cause.check} above")
    return finding


def _judge_device(info: Mapping[str, Any], answer: Answer, named: bool, auto: bool) -> list[DoctorFinding]:
    """What its step said; nothing of a device that was not tried, as it is another one's cores."""
    name = info["name"]
    events = [said for said in answer.said if said.get("device") == name]
    if not events:
        return []
    check = f"device {name}"
    last = events[-1]
    figures = {key: value for key, value in info.items() if key != "name"}
    if last["event"] == "trained":
        figures |= {key: last[key] for key in ("computes", "losses", "open_s", "seconds")}
        what = (
            f"trained two steps in {last['seconds']:.1f} s, sums as in float64"
            if last["computes"]
            else "takes and gives back mini-batches (simulated)"
        )
        return ok(check, f"{info['description']}: {what}", figures)
    why = last.get("why") or answer.problem
    # auto takes every real device that has cores of its own, and the CPU.
    needed = named or (auto and not info["simulated"] and (not info["host_cores"] or info["kind"] == "cpu"))
    state: State = "broken" if needed else "warning"
    found = f"{info['description']}: a training step fails: {one_line(why)}"
    remedy = f"{_remedy(info['kind'], why, '')}; for details, run python -m hyrt.testing {name}"
    return [DoctorFinding(check, state, found, remedy, figures)]


def _judge_wanted(name: str, asked: Backends) -> list[DoctorFinding]:
    """A device that the settings name and is not there."""
    kind, _, number = name.partition(":")
    if name == AUTO or (kind in asked.declared and kind not in asked.answers):
        return []
    check = f"device {name}"
    if kind not in asked.declared:
        there = ", ".join(sorted(asked.declared)) or "none"
        remedy = f"give one of these kinds: {there}; or install the package that provides it"
        return broken(check, f"there is no backend {kind!r}", remedy)
    answer = asked.answers[kind]
    infos = answer.first("found")
    if infos is None and answer.problem:
        return []  # The backend's own finding says it.
    numbers = {info["index"] for info in infos or ()}
    wanted = whole_number(number or "0")
    if wanted is None:
        return broken(check, NO_NAME, NAME_FORM)
    if wanted in numbers:
        return []
    why = answer.first("missing") or f"there are only {len(numbers)} of this kind"
    remedy = "run without it (--devices), or make it available: see hyrt devices"
    return broken(check, f"is not available: {one_line(str(why))}", remedy)


def _remedy(kind: str, problem: str, package: str) -> str:
    if problem.startswith(("hangs", "did not end")):
        return f"restart the driver of {kind}, or the machine; until then, use other --devices"
    if package and not package.startswith("hyrt "):
        return f"update or uninstall {package}; until then, use other --devices"
    return f"update or reinstall the driver and the packages of {kind}; until then, use other --devices"
