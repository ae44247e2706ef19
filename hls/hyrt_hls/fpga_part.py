"""FPGA parts, with their available resources and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from hyrt_perfmodel.validation import (
    Count,
    Positive,
    build_dataclass,
    check_keys,
    check_mapping,
    check_numbers,
    read_yaml,
)

import hyrt_hls

_FILE = Path(hyrt_hls.__file__).with_name("parts.yaml")
_MEMORY = ("kind", "banks", "peak_gb_s")
_TRAINER = ("pes", "mac_rows", "mac_cols", "arena_words")


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaPart:
    """FPGA card, described by the resources that its shell leaves to kernels."""

    name: str
    """Name of a built-in part such as `u250`, or the stem of the YAML file."""
    device: str
    platform: str
    """Name of the development platform for v++. `device` is Vivado's part name of the chip."""
    source: str
    """Source of these specifications."""
    dsp: Count
    lut: Count
    ff: Count
    bram36: Count
    uram: Count
    """Number of 288 Kb UltraRAMs in all SLRs. `dsp` counts DSP48E2, `lut` six-input LUTs, `bram36` 36 Kb."""
    slr_dsp: tuple[int, ...]
    """DSPs of each super logic region (SLR), bottom SLR first. Signals between SLRs need registers."""
    memory_kind: Literal["DDR", "HBM"]
    memory_banks: Count
    """Number of memory banks. `memory_kind` is `DDR` or `HBM`, as in link configurations."""
    peak_gb_s: Positive
    """Peak bandwidth of all banks together, in 1e9 bytes per second."""
    pes: Count
    mac_rows: Count
    mac_cols: Count
    arena_words: Count
    """Words per arena bank in this part's default design, which `pes`, `mac_rows` and `mac_cols` complete."""
    clock_mhz: Count | None = None
    """Default kernel clock of the platform in MHz, or None if unknown."""

    def __post_init__(self) -> None:
        check_numbers(f"part {self.name!r}", self)
        if min(self.slr_dsp, default=0) < 1 or sum(self.slr_dsp) != self.dsp:
            raise ValueError(
                f"part {self.name!r}: slr_dsp adds up to {sum(self.slr_dsp)}, but dsp is {self.dsp}: "
                "set slr_dsp to the DSPs of each region, at least 1"
            )

    @property
    def peak_bytes_per_s(self) -> float:
        """Return the peak bandwidth of all banks together."""
        return self.peak_gb_s * 1e9

    @property
    def bank_bytes_per_s(self) -> float:
        """Return the peak bandwidth of one bank, which limits each kernel argument: it has only one port."""
        return self.peak_bytes_per_s / self.memory_banks


def part_names() -> list[str]:
    """Return the names of the built-in parts, the HyScale-GNN paper's part first."""
    return list(read_yaml(_FILE))


def load_part(name: str) -> FpgaPart:
    """Load a built-in part, or a part from a .yaml or .yml file with the keys of an entry in parts.yaml.

    Raises ValueError if the part does not exist, or a key of the file is missing, unknown or not a number.
    """
    if name.endswith((".yaml", ".yml")):
        return _parse_part(Path(name).stem, read_yaml(Path(name)), name)
    parts = read_yaml(_FILE)
    if name not in parts:
        raise ValueError(f"unknown part {name!r}: choose one of {', '.join(parts)}, or a .yaml file")
    location = f"{_FILE.name}: {name}"
    return _parse_part(name, check_mapping(parts[name], location), location)


def _parse_part(name: str, content: Mapping[str, Any], location: str) -> FpgaPart:
    flat = ("name", "memory_kind", "memory_banks", "peak_gb_s", *_TRAINER)
    keys = [field.name for field in fields(FpgaPart) if field.name not in flat]
    check_keys(content, [*keys, "memory", "trainer"], ("memory", "trainer"), location)
    top_level = dict(content)
    nested = {key: check_mapping(top_level.pop(key), f"{location}: {key}") for key in ("memory", "trainer")}
    check_keys(nested["memory"], _MEMORY, _MEMORY, f"{location}: memory")
    check_keys(nested["trainer"], _TRAINER, _TRAINER, f"{location}: trainer")
    memory = {"memory_kind": nested["memory"]["kind"], "memory_banks": nested["memory"]["banks"]}
    peak = {"peak_gb_s": nested["memory"]["peak_gb_s"]}
    return build_dataclass(
        FpgaPart, {"name": name, **top_level, **memory, **peak, **nested["trainer"]}, location
    )
