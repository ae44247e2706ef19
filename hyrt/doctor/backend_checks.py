"""Checks of all declared backends, each probed in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any

from hyrt.device.discovery import BACKENDS
from hyrt.device.names import AUTO, NAME_FORM, NO_NAME
from hyrt.doctor.finding import DoctorFinding, State, broken, note, ok
from hyrt.errors import describe_error, one_line
from hyrt.formatting import parse_int
from hyrt.runtime.entry_points import provider
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker


@dataclass(frozen=True, slots=True)
class ProbedBackends:
    """Results of the backend probes."""

    declared: Mapping[str, Sequence[EntryPoint]]
    """Entry points by kind; several entry points of one kind are a conflict."""
    answers: Mapping[str, Answer]
    """Answers of the probed backends, by kind."""
    problem: str = ""
    """Why the entry points cannot be read, with `declared` empty; "" without a problem."""

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """Return all detected devices, in the form that `probe_backend` reports."""
        return [
            info for answer in self.answers.values() for found in answer.values("found") for info in found
        ]

    @property
    def devices_with_memory(self) -> list[str]:
        """Return the names of real devices that mini-batches are copied to."""
        return [
            info["name"]
            for info in self.devices
            if not (info["zero_copy"] or info["host_cores"] or info["simulated"])
        ]


def probe_backends(children: IsolatedWorker, limit_s: float, threads: int) -> ProbedBackends:
    """Let every backend detect its devices and train a step on each device."""
    try:
        entries = BACKENDS.entries_by_name()
    except Exception as error:  # The metadata of any installed distribution may be damaged.
        return ProbedBackends({}, {}, one_line(describe_error(error)))
    kinds = [kind for kind, providers in entries.items() if len(providers) == 1]
    return ProbedBackends(
        entries,
        children.query("hyrt.doctor.probes.backends:probe_backend", kinds, limit_s=limit_s, threads=threads),
    )


def evaluate_backends(
    probed: ProbedBackends, requested: Sequence[str], causes: Sequence[DoctorFinding] = ()
) -> list[DoctorFinding]:
    """Return the findings on all backends and devices.

    Failures of requested devices (`kind`, `kind:index` or `auto`) are broken, others are warnings. A failure
    that is due to one of `causes` (findings on packages and kernels) refers to it.
    """
    if probed.problem:
        found = f"the entry points of the installed distributions cannot be read: {probed.problem}"
        remedy = "run pip check, and reinstall the distribution whose *.dist-info is damaged"
        return broken("backends", found, remedy)
    findings: list[DoctorFinding] = []
    for kind in sorted(probed.declared):
        # A kind with conflicting declarations was not probed, so the conflict is the only cause.
        reasons = causes if kind in probed.answers else ()
        findings += [
            _refer_to_cause(finding, reasons) for finding in _backend_findings(kind, probed, requested)
        ]
    for name in dict.fromkeys(requested):
        findings += _missing_device_findings(name, probed)
    if AUTO in requested and not any(
        finding.state == "ok" and finding.figures.get("computes") for finding in findings
    ):
        found = "devices=auto found no device that can train"
        findings += broken("devices", found, "see the lines on each backend above")
    return findings


def _backend_findings(kind: str, backends: ProbedBackends, requested: Sequence[str]) -> list[DoctorFinding]:
    check = f"backend {kind}"
    kinds = {name.partition(":")[0] for name in requested}
    state: State = "broken" if kind in kinds else "warning"
    if kind not in backends.answers:
        owners, remedy = BACKENDS.describe_conflict(list(backends.declared[kind]))
        return [DoctorFinding(check, state, f"is declared by {owners}", remedy)]
    answer = backends.answers[kind]
    package = provider(backends.declared[kind][0])
    figures = {"provider": package, "devices": answer.first_value("found") or []}
    missing = answer.first_value("missing")
    if missing is not None:
        # A missing device that the settings name is a separate finding.
        return note(check, one_line(str(missing)), figures)
    findings = [
        each
        for info in answer.first_value("found") or ()
        for each in _device_findings(info, answer, kind in kinds, AUTO in kinds)
    ]
    if answer.problem and not any(finding.state != "ok" for finding in findings):
        found, remedy = f"{package}: {answer.problem}", _backend_remedy(kind, answer.problem, package)
        findings.append(DoctorFinding(check, state, found, remedy, figures))
    return findings


def _refer_to_cause(finding: DoctorFinding, causes: Sequence[DoctorFinding]) -> DoctorFinding:
    """Refer to the cause if a finding repeats its problem, or if cached kernels are damaged."""
    bad = [cause for cause in causes if finding.remedy and cause.state == "broken"]
    repeated = [each for each in bad if finding.found.endswith(each.figures.get("problem") or "\0")]
    for cause in [*repeated, *(each for each in bad if each.figures.get("damaged"))]:
        return replace(finding, remedy=f"first follow the line on {cause.check} above")
    return finding


def _device_findings(info: Mapping[str, Any], answer: Answer, named: bool, auto: bool) -> list[DoctorFinding]:
    """Return the findings on one device; empty if it is untested because it shares cores with another."""
    name = info["name"]
    events = [event for event in answer.messages if event.get("device") == name]
    if not events:
        return []
    check = f"device {name}"
    last = events[-1]
    figures = {key: value for key, value in info.items() if key != "name"}
    if last["event"] == "trained":
        figures |= {key: last[key] for key in ("computes", "losses", "open_s", "seconds")}
        outcome = (
            f"trained two steps in {last['seconds']:.1f} s, sums as in float64"
            if last["computes"]
            else "takes and gives back mini-batches (simulated)"
        )
        return ok(check, f"{info['description']}: {outcome}", figures)
    reason = last.get("why") or answer.problem
    # `auto` uses the CPU and every real device that does not share its cores.
    needed = named or (auto and not info["simulated"] and (not info["host_cores"] or info["kind"] == "cpu"))
    state: State = "broken" if needed else "warning"
    found = f"{info['description']}: a training step fails: {one_line(reason)}"
    remedy = f"{_backend_remedy(info['kind'], reason, '')}; for details, run python -m hyrt.testing {name}"
    return [DoctorFinding(check, state, found, remedy, figures)]


def _missing_device_findings(name: str, backends: ProbedBackends) -> list[DoctorFinding]:
    """Check a device that the settings name but that was not found."""
    kind, _, index_text = name.partition(":")
    if name == AUTO or (kind in backends.declared and kind not in backends.answers):
        return []
    check = f"device {name}"
    if kind not in backends.declared:
        kinds = ", ".join(sorted(backends.declared)) or "none"
        remedy = f"give one of these kinds: {kinds}; or install the package that provides it"
        return broken(check, f"there is no backend {kind!r}", remedy)
    answer = backends.answers[kind]
    infos = answer.first_value("found")
    if infos is None and answer.problem:
        return []  # Covered by the backend's finding.
    indices = {info["index"] for info in infos or ()}
    index = parse_int(index_text or "0")
    if index is None:
        return broken(check, NO_NAME, NAME_FORM)
    if index in indices:
        return []
    reason = answer.first_value("missing") or f"there are only {len(indices)} of this kind"
    remedy = "run without it (--devices), or make it available: see hyrt devices"
    return broken(check, f"is not available: {one_line(str(reason))}", remedy)


def _backend_remedy(kind: str, problem: str, package: str) -> str:
    if problem.startswith(("hangs", "did not end")):
        return f"restart the driver of {kind}, or the machine; until then, use other --devices"
    if package and not package.startswith("hyrt "):
        return f"update or uninstall {package}; until then, use other --devices"
    return f"update or reinstall the driver and the packages of {kind}; until then, use other --devices"
