"""Card and kernel design that `fpga-csim` simulates, with the parameters of the cycle model."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from hyrt_hls.build_report import design_from_build, identify_part, read_build
from hyrt_hls.fpga_part import FpgaPart, load_part
from hyrt_hls.resources import KernelDesign
from hyrt_perfmodel.fpga_design import FpgaDesign

REPORTS_VARIABLE = "HYRT_FPGA_REPORTS"
"""Environment variable with the folder of a build whose design and reported clock are simulated."""

_PART = "u250"


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """FPGA card that is simulated."""

    part: FpgaPart
    design: KernelDesign
    modelled: FpgaDesign
    """The same design with the rates that the cycle model uses."""
    reported: bool = False
    """Whether the clock is from build reports."""


def simulated_card() -> SimulatedCard:
    """Return the build that HYRT_FPGA_REPORTS names, or a U250 with the trainer of the paper's Table IV.

    Raises ValueError if the reports cannot be read, belong to several builds, or describe an unknown part.
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
    """Return the cycle-model parameters that are assumed for a trainer that has not been built."""
    # Features are read through one port, from one bank.
    return replace(design.design, ddr_bytes_per_s=part.bank_bytes_per_s)
