"""Which card and which trainer `fpga-csim` stands for, and what the cycle model takes them to be."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from hyrt_hls.build_report import design_from_build, identify_part, read_build
from hyrt_hls.fpga_part import FpgaPart, load_part
from hyrt_hls.resources import KernelDesign
from hyrt_perfmodel.fpga_design import FpgaDesign

REPORTS_VARIABLE = "HYRT_FPGA_REPORTS"
"""Environment variable: the folder of a build whose trainer is simulated, with its reports' clock."""

_PART = "u250"


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card that is not there."""

    part: FpgaPart
    """The part on the card."""
    design: KernelDesign
    """The design of its trainer."""
    modelled: FpgaDesign
    """The same with the rates that its time is computed of."""
    reported: bool = False
    """Whether a build told the clock."""


def simulated_card() -> SimulatedCard:
    """The build that HYRT_FPGA_REPORTS names, else a U250 with the trainer of the paper's Table IV.

    Raises
    ------
    ValueError
        If the reports cannot be read, are not of one build, or not of a part that is known.
    """
    reports = os.environ.get(REPORTS_VARIABLE)
    if not reports:
        part = load_part(_PART)
        sizes = KernelDesign(
            pes=part.pes, mac_rows=part.mac_rows, mac_cols=part.mac_cols, arena_words=part.arena_words
        )
        return SimulatedCard(part, sizes, assumed_design(sizes, part))
    place = Path(os.path.expanduser(reports))
    part = identify_part(place)
    build = read_build(place, part)
    design = KernelDesign(
        pes=build.design.pes,
        mac_rows=build.design.mac_rows,
        mac_cols=build.design.mac_cols,
        arena_words=build.arena_words,
        fifo_depth=build.design.fifo_depth,
    )
    return SimulatedCard(part, design, design_from_build(build, part), reported=True)


def assumed_design(design: KernelDesign, part: FpgaPart) -> FpgaDesign:
    """What the cycle model takes a trainer to be that has not been built."""
    # Features come through one port, from one bank.
    return replace(design.design, ddr_bytes_per_s=part.bank_bytes_per_s)
