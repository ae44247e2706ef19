"""FPGA cards: what a design may take of them, and how their memory is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt_perfmodel.file_content import listed, mapping, number, only_keys, read_yaml, whole

_FILE = Path(__file__).with_name("parts.yaml")
_COUNTS = ("dsp", "lut", "ff", "bram36", "uram")
_TEXTS = ("device", "platform", "source")
_TRAINER = ("pes", "mac_rows", "mac_cols", "arena_words")
_KEYS = (*_COUNTS, *_TEXTS, "slr_dsp", "memory", "trainer")
_MAY_BE = ("clock_mhz",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A card, or what a shell leaves of it.

    Parameters
    ----------
    name
        `u250`, or the file's.
    device, platform
        Vivado's name of the chip, and the development platform that v++ builds for.
    source
        Where the numbers are from.
    dsp, lut, ff, bram36, uram
        Totals over the SLRs: DSP48E2, six-input tables, flip-flops, block RAM of 36 Kb, UltraRAM of 288 Kb.
    slr_dsp
        DSP of each super logic region, the lowest first: what crosses from one to the next needs registers.
    memory_kind, memory_banks
        `DDR` or `HBM`, as link configurations call it, and its banks.
    peak_bytes_per_s
        Bandwidth of all banks together.
    pes, mac_rows, mac_cols, arena_words
        Sizes of the trainer that is built where no other is asked for.
    clock_mhz
        The clock of the platform's kernels where nothing else is asked for; None where the file does not say.
    """

    name: str
    device: str
    platform: str
    source: str
    dsp: int
    lut: int
    ff: int
    bram36: int
    uram: int
    slr_dsp: tuple[int, ...]
    memory_kind: str
    memory_banks: int
    peak_bytes_per_s: float
    pes: int
    mac_rows: int
    mac_cols: int
    arena_words: int
    clock_mhz: int | None = None

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
    only_keys(content, (*_KEYS, *_MAY_BE), _KEYS, where)
    memory = mapping(content["memory"], f"{where}: memory")
    keys = ("kind", "banks", "peak_gb_s")
    only_keys(memory, keys, keys, f"{where}: memory")
    trainer = mapping(content["trainer"], f"{where}: trainer")
    only_keys(trainer, _TRAINER, _TRAINER, f"{where}: trainer")
    slr_dsp = listed(content["slr_dsp"], f"{where}: slr_dsp")
    texts = {key: content[key] for key in _TEXTS}
    for key, text in (*texts.items(), ("memory: kind", memory["kind"])):
        if not isinstance(text, str):
            raise ValueError(f"{where}: {key} is {text!r}: give text")
    if memory["kind"] not in ("DDR", "HBM"):
        raise ValueError(f"{where}: memory: kind is {memory['kind']!r}: give DDR or HBM")
    counts: dict[str, Any] = {key: _count(content[key], f"{where}: {key}") for key in _COUNTS}
    sizes: dict[str, Any] = {key: _count(trainer[key], f"{where}: trainer: {key}") for key in _TRAINER}
    regions = tuple(_count(each, f"{where}: slr_dsp[{i}]") for i, each in enumerate(slr_dsp))
    if sum(regions) != counts["dsp"]:
        raise ValueError(
            f"{where}: slr_dsp adds up to {sum(regions)}, but dsp is {counts['dsp']}: give the number "
            "for each region"
        )
    peak_gb_s = number(memory["peak_gb_s"], f"{where}: memory: peak_gb_s")
    if peak_gb_s <= 0:
        raise ValueError(f"{where}: memory: peak_gb_s is {peak_gb_s}: give a number above 0")
    return Part(
        name=name,
        **texts,
        **counts,
        slr_dsp=regions,
        memory_kind=memory["kind"],
        memory_banks=_count(memory["banks"], f"{where}: memory: banks"),
        peak_bytes_per_s=peak_gb_s * 1e9,
        **sizes,
        clock_mhz=_count(content["clock_mhz"], f"{where}: clock_mhz") if "clock_mhz" in content else None,
    )


def _count(value: Any, where: str) -> int:
    found = whole(value, where)
    if found < 1:
        raise ValueError(f"{where} is {found}: give a whole number of at least 1")
    return found
