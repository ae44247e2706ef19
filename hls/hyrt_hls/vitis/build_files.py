"""Build folder of a trainer: sources, link configuration, and the design as make variables."""

from __future__ import annotations

import shutil
from pathlib import Path

from hyrt_perfmodel.cycles.design import FpgaDesign

import hyrt_hls
from hyrt_hls.parts.part import Part
from hyrt_hls.parts.resources import (
    STREAM_BITS,
    Resources,
    check_buildable,
    estimate,
    refuse,
    widest_stream_bits,
)
from hyrt_hls.task.arena_limits import check_arena
from hyrt_hls.vitis.link_config import link_config

_HOME = Path(hyrt_hls.__file__).parent
_FOLDERS = {"kernels": ("*.cpp", "*.hpp"), "include": ("*.h",)}


def write_build_files(
    folder: Path, part: Part, design: FpgaDesign, arena_words: int, *, units: int = 1
) -> Resources:
    """Write the files that `make` needs in addition to Vitis.

    Parameters
    ----------
    folder
        New or empty folder.
    part
        The FPGA part to build for.
    design
        n, m, FIFO depth, adder latency and clock of each compute unit.
    arena_words
        Words per bank.
    units
        Number of trainers on the card.

    Returns
    -------
    Estimated resources of all compute units.

    Raises
    ------
    ValueError
        If the folder is not empty, or the design cannot be built, does not fit, or has too small an arena.
    OSError
        If the folder cannot be written.
    """
    check_buildable(design, arena_words)
    check_arena(design.pes, arena_words)
    config = link_config(part, design, units=units)
    resources = estimate(design, arena_words).times(units)
    refuse(part, resources)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: give a new or empty folder")
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


def doubts(part: Part, design: FpgaDesign) -> list[str]:
    """Return warnings about a design that `write_build_files` accepts, one sentence each.

    Parameters
    ----------
    part, design
        The arguments of `write_build_files`.
    """
    warnings = []
    clock_mhz, bits = design.clock_hz / 1e6, widest_stream_bits(design)
    if part.clock_mhz is not None and clock_mhz > part.clock_mhz:
        warnings.append(
            f"the design asks for {clock_mhz:,.0f} MHz, but {part.name}'s platform states "
            f"{part.clock_mhz}: v++ may not reach it"
        )
    if bits > STREAM_BITS:
        warnings.append(
            f"streams of {bits:,} bits: Vitis HLS is reported to refuse more than {STREAM_BITS:,}: try "
            "v++ -c first, or choose a smaller n or array"
        )
    return warnings
