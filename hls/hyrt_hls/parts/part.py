"""FPGA cards: what a design may take of them, and how their memory is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from hyrt_perfmodel.checks import Count, Positive, check_numbers
from hyrt_perfmodel.file_content import made_of, mapping, only_keys, read_yaml

_FILE = Path(__file__).with_name("parts.yaml")
_MEMORY = ("kind", "banks", "peak_gb_s")
_TRAINER = ("pes", "mac_rows", "mac_cols", "arena_words")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A card, or what a shell leaves of it."""

    name: str
    """`u250`, or the file's."""
    device: str
    platform: str
    """`device` and `platform`: vivado's name of the chip, and the development platform that v++ builds for.
    """
    source: str
    """The source of the numbers."""
    dsp: Count
    lut: Count
    ff: Count
    bram36: Count
    uram: Count
    """`dsp`, `lut`, `ff`, `bram36` and `uram`: totals over the SLRs: DSP48E2, six-input tables, flip-flops,
    block RAM of 36 Kb, UltraRAM of 288 Kb."""
    slr_dsp: tuple[int, ...]
    """DSP of each super logic region, the lowest first: what crosses from one to the next needs registers."""
    memory_kind: Literal["DDR", "HBM"]
    memory_banks: Count
    """`memory_kind` and `memory_banks`: `DDR` or `HBM`, as link configurations call it, and its banks."""
    peak_gb_s: Positive
    """Bandwidth of all banks together, in 1e9 bytes per second."""
    pes: Count
    mac_rows: Count
    mac_cols: Count
    arena_words: Count
    """`pes`, `mac_rows`, `mac_cols` and `arena_words`: sizes of the trainer that is built where no other is
    asked for."""
    clock_mhz: Count | None = None
    """The clock of the platform's kernels where nothing else is asked for; None where the file does not say.
    """

    def __post_init__(self) -> None:
        check_numbers(f"part {self.name!r}", self)
        if min(self.slr_dsp, default=0) < 1 or sum(self.slr_dsp) != self.dsp:
            raise ValueError(
                f"part {self.name!r}: slr_dsp adds up to {sum(self.slr_dsp)}, but dsp is {self.dsp}: "
                "give the number for each region, at least 1"
            )

    @property
    def peak_bytes_per_s(self) -> float:
        """Bandwidth of all banks together."""
        return self.peak_gb_s * 1e9

    @property
    def bank_bytes_per_s(self) -> float:
        """Peak of one bank: what an argument of the kernel, which has one port, is read with at most."""
        return self.peak_bytes_per_s / self.memory_banks


def part_names() -> list[str]:
    """Names of the parts that are known, the paper's first."""
    return list(read_yaml(_FILE))


def load_part(name: str) -> Part:
    """A known part, or one of a YAML file with the keys of one entry of parts.yaml.

    Parameters
    ----------
    name
        One of `part_names`, or a path that ends in .yaml or .yml.

    Raises
    ------
    ValueError
        If there is no such part, or a key of the file is missing, unknown or no number; naming file and key.
    """
    if name.endswith((".yaml", ".yml")):
        return _part(Path(name).stem, read_yaml(Path(name)), name)
    known = read_yaml(_FILE)
    if name not in known:
        raise ValueError(f"unknown part {name!r}: give one of {', '.join(known)}, or a .yaml file")
    where = f"{_FILE.name}: {name}"
    return _part(name, mapping(known[name], where), where)


def _part(name: str, content: Mapping[str, Any], where: str) -> Part:
    flat = ("name", "memory_kind", "memory_banks", "peak_gb_s", *_TRAINER)
    known = [field.name for field in fields(Part) if field.name not in flat]
    only_keys(content, [*known, "memory", "trainer"], ("memory", "trainer"), where)
    own = dict(content)
    nested = {key: mapping(own.pop(key), f"{where}: {key}") for key in ("memory", "trainer")}
    only_keys(nested["memory"], _MEMORY, _MEMORY, f"{where}: memory")
    only_keys(nested["trainer"], _TRAINER, _TRAINER, f"{where}: trainer")
    memory = {"memory_kind": nested["memory"]["kind"], "memory_banks": nested["memory"]["banks"]}
    peak = {"peak_gb_s": nested["memory"]["peak_gb_s"]}
    return made_of(Part, {"name": name, **own, **memory, **peak, **nested["trainer"]}, where)
