"""Build folder of a trainer: sources, linker configuration for v++, and make variables with the design."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from hyrt_perfmodel.fpga_design import FpgaDesign

import hyrt_hls
from hyrt_hls.arena_limits import check_arena
from hyrt_hls.fpga_part import FpgaPart
from hyrt_hls.resources import (
    STREAM_BITS,
    Resources,
    check_buildable,
    check_fits,
    estimate_dsp,
    estimate_resources,
    widest_stream_bits,
)
from hyrt_hls.task_layout import ARGUMENTS

KERNEL = "hyrt_train"
# Memory bank groups of the kernel arguments. Features and edges, the largest arrays, get separate groups.
# Weights and gradients share one, because weights are read before gradients are written.
_GROUPS: Mapping[str, int] = {"features": 0, "edges": 1, "weights": 2, "gradients": 2}
_OTHERS = 3
# First and last HBM bank of each group. Features get several banks, because a bank has only 256 MiB.
_HBM_RANGES = ((0, 3), (4, 5), (6, 6), (7, 7))
_HBM_BANKS = 8


def link_config(part: FpgaPart, design: FpgaDesign, *, units: int = 1) -> str:
    """Return the configuration text for `v++ -l --config`.

    Banks and SLRs are assigned to compute units in turn. A unit is bound to one SLR if its DSPs fit;
    otherwise the placer decides. Raises ValueError if `units` is below 1, or HBM has too few banks.
    """
    if units < 1:
        raise ValueError(f"link configuration: the number of compute units must be at least 1, got {units}")
    if part.memory_kind == "HBM" and units * _HBM_BANKS > part.memory_banks:
        raise ValueError(
            f"{units} compute units need {units * _HBM_BANKS} HBM banks, but {part.name} has "
            f"{part.memory_banks}: use fewer compute units"
        )
    large_slrs = [slr for slr, num_dsp in enumerate(part.slr_dsp) if estimate_dsp(design) <= num_dsp]
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


def _bank(part: FpgaPart, unit: int, argument: str) -> str:
    group = _GROUPS.get(argument, _OTHERS)
    if part.memory_kind == "DDR":
        return f"DDR[{(unit + group) % part.memory_banks}]"
    first, last = (unit * _HBM_BANKS + bank for bank in _HBM_RANGES[group])
    return f"HBM[{first}]" if first == last else f"HBM[{first}:{last}]"


_HOME = Path(hyrt_hls.__file__).parent
_FOLDERS = {"kernels": ("*.cpp", "*.hpp"), "include": ("*.h",)}


def write_build_files(
    folder: Path, part: FpgaPart, design: FpgaDesign, arena_words: int, *, units: int = 1
) -> Resources:
    """Write all files that `make` needs besides Vitis, and return the resources of all compute units.

    `folder` must be new or empty. `design` describes each of the `units` trainers on the card; `arena_words`
    is the number of words per bank. Raises ValueError if the folder is not empty, or the design cannot be
    built, does not fit the part, or has too small an arena.
    """
    check_buildable(design, arena_words)
    check_arena(design.pes, arena_words)
    config = link_config(part, design, units=units)
    resources = estimate_resources(design, arena_words).scaled(units)
    check_fits(part, resources)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: choose a new or empty folder")
    for name, patterns in _FOLDERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for pattern in patterns:
            for source in sorted((_HOME / name).glob(pattern)):
                shutil.copyfile(source, folder / name / source.name)
    shutil.copyfile(_HOME / "Makefile", folder / "Makefile")
    (folder / "configs").mkdir()
    (folder / "configs" / f"{part.name}.cfg").write_text(config, encoding="utf-8")
    variables = {
        "PLATFORM": part.platform,
        "CONFIG": f"configs/{part.name}.cfg",
        "FREQUENCY_MHZ": round(design.clock_hz / 1e6),
        "PES": design.pes,
        "MAC_ROWS": design.mac_rows,
        "MAC_COLS": design.mac_cols,
        "ARENA_WORDS": arena_words,
        "FIFO_DEPTH": design.fifo_depth,
        "ADDER_LATENCY": design.adder_latency,
    }
    lines = [f"{name} ?= {value}\n" for name, value in variables.items()]
    (folder / "design.mk").write_text("".join(lines), encoding="utf-8")
    return resources


def build_warnings(part: FpgaPart, design: FpgaDesign) -> list[str]:
    """Return one sentence per risk of a design that `write_build_files` accepts."""
    warnings = []
    clock_mhz, bits = design.clock_hz / 1e6, widest_stream_bits(design)
    if part.clock_mhz is not None and clock_mhz > part.clock_mhz:
        warnings.append(
            f"the design has a clock of {clock_mhz:,.0f} MHz, but the platform of {part.name} only "
            f"{part.clock_mhz} MHz, so v++ may not achieve timing closure: lower the clock of the design"
        )
    if bits > STREAM_BITS:
        warnings.append(
            f"streams have {bits:,} bits, but Vitis HLS is reported to reject more than {STREAM_BITS:,}: try "
            "v++ -c first, or choose a smaller n or array"
        )
    return warnings
