"""What installed packages declare beside hyrt's own samplers, models and objectives."""

from __future__ import annotations

from collections.abc import Mapping

from hyrt.doctor.finding import DoctorFinding, State
from hyrt.machine.entry_points import EntryPointGroup
from hyrt.objective.registry import BY_LABELS, OF_LABELS

_GROUPS = {
    "sampler": EntryPointGroup("hyrt.samplers", "sampler.kind"),
    "model": EntryPointGroup("hyrt.models", "model.kind"),
    "objective": EntryPointGroup("hyrt.objectives", "objective"),
}
# What a run without settings uses.
DEFAULT_KINDS = {"sampler": "neighbor", "model": "graphsage", "objective": BY_LABELS}


def check_plug_ins(kinds: Mapping[str, str]) -> list[DoctorFinding]:
    """Names that two distributions declare: a run that uses one fails, others do not notice.

    Devices are judged with their backends.

    Parameters
    ----------
    kinds
        The `sampler`, `model` and `objective` of the run.
    """
    findings = []
    for what, group in _GROUPS.items():
        for kind, entries in group.declared().items():
            if len(entries) > 1:
                wanted = OF_LABELS.values() if kinds[what] == BY_LABELS else (kinds[what],)
                state: State = "broken" if kind in wanted else "warning"
                owners, remedy = group.conflict(entries)
                found = f"{group.noun} {kind!r} is declared by {owners}"
                findings.append(DoctorFinding("plug-ins", state, found, remedy))
    return findings
