"""Configurations for v++'s linker: number of compute units, their SLRs, and memory banks of arguments."""

from __future__ import annotations

from collections.abc import Mapping

from hyrt_perfmodel.cycles.design import FpgaDesign

from hyrt_hls.parts.part import Part
from hyrt_hls.parts.resources import dsp
from hyrt_hls.task.layout import ARGUMENTS

KERNEL = "hyrt_train"
# The largest streams get separate banks: features, then edges. Weights share one with gradients, as they are
# read before gradients are written; the rest is small.
_GROUPS: Mapping[str, int] = {"features": 0, "edges": 1, "weights": 2, "gradients": 2}
_OTHERS = 3
# First and last HBM bank of each group; a bank has only 256 MiB, so features get several.
_HBM_RANGES = ((0, 3), (4, 5), (6, 6), (7, 7))
_HBM_BANKS = 8


def link_config(part: Part, design: FpgaDesign, *, units: int = 1) -> str:
    """Return the text of a configuration for `v++ -l --config`.

    Compute units take banks and SLRs in turn. A unit is bound to one SLR if its DSPs fit; otherwise the
    placer decides.

    Raises
    ------
    ValueError
        If `units` is not at least 1, or HBM has too few banks.
    """
    if units < 1:
        raise ValueError(f"link configuration: {units} compute units: give at least 1")
    if part.memory_kind == "HBM" and units * _HBM_BANKS > part.memory_banks:
        raise ValueError(
            f"{part.name}: {units} compute units need {units * _HBM_BANKS} HBM banks, but it has "
            f"{part.memory_banks}"
        )
    large_slrs = [slr for slr, num_dsp in enumerate(part.slr_dsp) if dsp(design) <= num_dsp]
    lines = [
        f"# {part.name}: {units} x (n = {design.pes}, m = {design.mac_rows} x {design.mac_cols}); v++ "
        "numbers units from 1.",
        "[connectivity]",
        f"nk={KERNEL}:{units}",
    ]
    for unit in range(units):
        name = f"{KERNEL}_{unit + 1}"
        lines.append("")
        if large_slrs:
            lines.append(f"slr={name}:SLR{large_slrs[unit % len(large_slrs)]}")
        lines += [f"sp={name}.{argument}:{_bank(part, unit, argument)}" for argument in ARGUMENTS]
    return "\n".join(lines) + "\n"


def _bank(part: Part, unit: int, argument: str) -> str:
    group = _GROUPS.get(argument, _OTHERS)
    if part.memory_kind == "DDR":
        return f"DDR[{(unit + group) % part.memory_banks}]"
    first, last = (unit * _HBM_BANKS + bank for bank in _HBM_RANGES[group])
    return f"HBM[{first}]" if first == last else f"HBM[{first}:{last}]"
