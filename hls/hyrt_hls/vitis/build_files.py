"""A folder to build a trainer in: sources, link configuration, and the design as make's variables."""

from __future__ import annotations

import shutil
from pathlib import Path

from hyrt_perfmodel.cycles.design import FpgaDesign

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

_HOME = Path(__file__).parents[1]
_FOLDERS = {"kernels": ("*.cpp", "*.hpp"), "include": ("*.h",)}


def write_build_files(
    folder: Path, part: Part, design: FpgaDesign, arena_words: int, *, units: int = 1
) -> Resources:
    """Write what `make` needs beside Vitis.

    Parameters
    ----------
    folder
        New, or empty.
    part
        The card to build for.
    design
        n, m, the depth of the queues, the adder's latency and the clock of each unit.
    arena_words
        Words of each bank.
    units
        Trainers on the card.

    Returns
    -------
    What all units take of the part.

    Raises
    ------
    ValueError
        If the folder holds something, or the design cannot be built, does not fit, or has an arena for next
        to nothing.
    OSError
        If the folder cannot be written.
    """
    check_buildable(design, arena_words)
    check_arena(design.pes, arena_words)
    config = link_config(part, design, units=units)
    needs = estimate(design, arena_words).times(units)
    refuse(part, needs)
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
    return needs


def doubts(part: Part, design: FpgaDesign) -> list[str]:
    """What may go wrong with a design that `write_build_files` takes, one sentence each.

    Parameters
    ----------
    part, design
        The arguments of `write_build_files`.
    """
    found = []
    clock_mhz, bits = design.clock_hz / 1e6, widest_stream_bits(design)
    if part.clock_mhz is not None and clock_mhz > part.clock_mhz:
        found.append(
            f"the design asks for {clock_mhz:,.0f} MHz, but {part.name}'s platform states "
            f"{part.clock_mhz}: v++ may not reach it"
        )
    if bits > STREAM_BITS:
        found.append(
            f"streams of {bits:,} bits: Vitis HLS is reported to refuse more than {STREAM_BITS:,}: try "
            "v++ -c first, or choose a smaller n or array"
        )
    return found
