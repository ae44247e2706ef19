"""A folder to build a trainer in: sources, link configuration, and the design as make's variables."""

from __future__ import annotations

import shutil
from pathlib import Path

from hyrt_perfmodel.cycles.design import FpgaDesign

from hyrt_hls.link_config import link_config
from hyrt_hls.parts import Part
from hyrt_hls.resources import Resources, check_buildable, estimate, refuse

_HOME = Path(__file__).parent
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
        To build for.
    design
        n, m, the depth of the queues, the adder's latency and the clock of each unit.
    arena_words
        Of each bank.
    units
        Trainers on the card.

    Returns
    -------
    What all units take of the part.

    Raises
    ------
    ValueError
        If the folder holds something, or the design cannot be built or does not fit.
    OSError
        If the folder cannot be written.
    """
    check_buildable(design, arena_words)
    config = link_config(part, design, units=units)
    needs = estimate(design, arena_words).times(units)
    refuse(part, needs)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: there is something: give a folder that is new or empty")
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
