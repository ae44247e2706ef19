"""Check of the samplers, models and objectives that installed packages declare."""

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
# Kinds of a run without settings.
DEFAULT_KINDS = {"sampler": "neighbor", "model": "graphsage", "objective": BY_LABELS}


def check_plug_ins(kinds: Mapping[str, str]) -> list[DoctorFinding]:
    """Report kinds that two distributions declare: a run that uses such a kind fails.

    Devices are checked with their backends.

    Parameters
    ----------
    kinds
        The `sampler`, `model` and `objective` of the run.
    """
    findings = []
    for noun, group in _GROUPS.items():
        for kind, entries in group.declared().items():
            if len(entries) > 1:
                used_kinds = OF_LABELS.values() if kinds[noun] == BY_LABELS else (kinds[noun],)
                state: State = "broken" if kind in used_kinds else "warning"
                owners, remedy = group.conflict(entries)
                found = f"{group.noun} {kind!r} is declared by {owners}"
                findings.append(DoctorFinding("plug-ins", state, found, remedy))
    return findings
