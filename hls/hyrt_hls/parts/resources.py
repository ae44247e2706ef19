"""What a trainer takes of a part, before it is built.

Of logic and arithmetic the published model of HP-GNN (Lin, Zhang, Prasanna, "HP-GNN: Generating High
Throughput GNN Training Implementation on CPU-FPGA Heterogeneous Platform", FPGA 2022), whose trainer has the
same two kernels; of memories the widths and depths that UG573 (UltraScale memory resources) gives. Flip-flops
have no published model; they are twice the tables on these parts, and not what runs out. Numbers of a build
replace all of this: `vpp_report`.

The paper's Table IV (n = 8, m = 2048 on a U250) reports DSP 0.90, LUT 0.72, URAM 0.48, BRAM 0.40. HP-GNN's
formulas alone give DSP 0.906 and LUT 0.722. This estimate says LUT 0.799, as it adds what these kernels keep
in tables beyond them (n x n queues, eight partial sums a multiply-accumulate); URAM 0.45 with the default
arena; and BRAM 0.03, for these kernels keep arena and weights in UltraRAM.

Counted are one array and one network. Not counted: the loss, the generator of dropout (64-bit products),
control, the platform's shell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from hyrt_perfmodel.checks import Count, check_numbers
from hyrt_perfmodel.cycles.design import LANES, FpgaDesign

from hyrt_hls.parts.part import Part
from hyrt_hls.task.layout import MOST_CHUNKS, PANEL_ROWS, row_base

# HP-GNN: a multiply-accumulate in fp32, and a scatter unit with its gather unit, 16 lanes each.
DSP_PER_MAC = 5
DSP_PER_PE = 112
LUT_PER_MAC = 470
LUT_PER_PE = 21_715
LUT_PER_ROUTE = 4_610
# UG573: one UltraRAM is 4096 x 72 bits, one block RAM of 36 Kb used with one port for reading and one for
# writing 512 x 72.
MEMORY_BITS = 72
URAM_DEPTH = 4096
BRAM_DEPTH = 512
# UG574: a table of a SLICEM is a shift register of 32 bits.
SHIFT_REGISTER_DEPTH = 32
WORD_BITS = 512
VALUE_BITS = 32
# UG574: eight tables of a SLICEM hold 32 x 14 bits, written at one port and read at another; folding reads
# two sums at a time.
TABLES_OF_MEMORY, MEMORY_TABLE_BITS, SUMS_READ = 8, 14, 2
STREAM_BITS = 4096
"""The widest word of a stream: Vitis HLS 2023.2 refuses more (Xilinx/Vitis-Tutorials issue 426)."""
# Of the kernel's ports (kernels/trainer.cpp): bits, and words that are under way: Vitis HLS's 16 bursts of
# 16, but for features.
PORTS = {
    "features": (512, 32 * 64),
    "edges": (128, 256),
    "weights": (512, 256),
    "vertices": (64, 256),
    "small, read": (32, 256),
    "small, written": (32, 256),
    "scores": (512, 256),
    "gradients": (512, 256),
}
_REMEDIES = {"dsp": "n or m", "lut": "n or m", "bram36": "n or fifo_depth", "uram": "n or arena_words"}
# What travels with a word through the network: its address, and whether it is the last.
ADDRESS_BITS = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Of a design: DSP48E2, six-input tables, block RAM of 36 Kb, UltraRAM of 288 Kb."""

    dsp: int
    lut: int
    bram36: int
    uram: int

    def of(self, part: Part) -> dict[str, float]:
        """Fractions of the part, by resource."""
        return {field.name: getattr(self, field.name) / getattr(part, field.name) for field in fields(self)}

    def times(self, units: int) -> Resources:
        """Of several units."""
        return Resources(**{field.name: units * getattr(self, field.name) for field in fields(self)})


@dataclass(frozen=True, slots=True)
class KernelDesign:
    """Sizes of a trainer.

    Raises
    ------
    ValueError
        If the kernels do not take these sizes.
    """

    pes: Count = 8
    """n, scatter units, gather units and banks."""
    mac_rows: Count = 32
    mac_cols: Count = 64
    """`mac_rows` and `mac_cols`: sizes of the array; m is their product. Rows are a multiple of `pes` and
    divide LANES or are a multiple of it; columns are a multiple of LANES."""
    arena_words: Count = 32768
    """Words of each bank."""
    fifo_depth: Count = 32
    """Messages of each of the network's queues, at least 2."""

    def __post_init__(self) -> None:
        check_numbers("design", self)
        try:
            check_buildable(self.design, self.arena_words)
        except ValueError as error:
            raise ValueError(f"design: {error}") from error

    @property
    def design(self) -> FpgaDesign:
        """The same as the cycle model takes it."""
        return FpgaDesign(
            pes=self.pes, mac_rows=self.mac_rows, mac_cols=self.mac_cols, fifo_depth=self.fifo_depth
        )


def check_buildable(design: FpgaDesign, arena_words: int) -> None:
    """Refuse sizes that the kernels cannot have (the static_asserts of kernels/design.hpp).

    Raises
    ------
    ValueError
        Naming the size.
    """
    rows, cols = design.mac_rows, design.mac_cols
    if cols % LANES:
        raise ValueError(f"mac_cols is {cols}: give a multiple of {LANES}, whole words")
    if rows % design.pes:
        raise ValueError(
            f"mac_rows is {rows}: give a multiple of pes ({design.pes}), so that every bank has rows"
        )
    if rows % LANES and LANES % rows:
        raise ValueError(f"mac_rows is {rows}: give a multiple of {LANES}, or 1, 2, 4 or 8")
    if design.fifo_depth < 2:
        raise ValueError(f"fifo_depth is {design.fifo_depth}: give at least 2")
    if arena_words < 2:
        raise ValueError(f"arena_words is {arena_words}: give at least 2, one word for sums and one for rows")


def widest_stream_bits(design: FpgaDesign) -> int:
    """The widest of a word from each of n banks and a value for each row or column of the array."""
    return max(WORD_BITS * design.pes, VALUE_BITS * design.mac_rows, VALUE_BITS * design.mac_cols)


def estimate(design: FpgaDesign, arena_words: int) -> Resources:
    """What a compute unit takes.

    Parameters
    ----------
    design
        n, m and the depth of the queues.
    arena_words
        Words of 16 floats in each of the n banks.

    Raises
    ------
    ValueError
        If `arena_words` is not above 0.
    """
    if arena_words < 1:
        raise ValueError(f"arena: {arena_words} words per bank: give at least 1")
    return Resources(dsp=dsp(design), lut=lut(design), bram36=bram36(design), uram=uram(design, arena_words))


def dsp(design: FpgaDesign) -> int:
    """5 m + 112 n (HP-GNN)."""
    return DSP_PER_MAC * design.macs + DSP_PER_PE * design.pes


def published_lut(design: FpgaDesign) -> int:
    """470 m + 21715 n + 4610 n log2 n (HP-GNN, whose network is a butterfly)."""
    routes = design.pes * math.log2(design.pes)
    return math.ceil(LUT_PER_MAC * design.macs + LUT_PER_PE * design.pes + LUT_PER_ROUTE * routes)


def lut(design: FpgaDesign) -> int:
    """HP-GNN's formula, shift registers of n x n shallow queues, and partial sums of m cells."""
    sums = SUMS_READ * TABLES_OF_MEMORY * math.ceil(VALUE_BITS / MEMORY_TABLE_BITS) * design.macs
    queues = 0 if _in_block_ram(design) else design.pes**2 * (WORD_BITS + ADDRESS_BITS)
    return published_lut(design) + queues + sums


def uram(design: FpgaDesign, arena_words: int) -> int:
    """The arena and a panel of the weights, each 512 bits wide (8 UltraRAM side by side) and 4096 words deep.

    The arena has n banks of two memories (`layout.row_base`), the panel a memory for each 16 columns of the
    array.
    """
    sums = row_base(arena_words)
    deep = math.ceil(sums / URAM_DEPTH) + math.ceil((arena_words - sums) / URAM_DEPTH)
    panel = math.ceil(design.mac_cols / LANES) * math.ceil(PANEL_ROWS / URAM_DEPTH)
    return _side_by_side(WORD_BITS) * (design.pes * deep + panel)


def bram36(design: FpgaDesign) -> int:
    """What the memory ports have under way, the duplicator's row, and queues too deep for tables."""
    queues = design.pes**2 * _block_rams(WORD_BITS + ADDRESS_BITS, design.fifo_depth)
    ports = sum(_block_rams(bits, words) for bits, words in PORTS.values())
    return queues * _in_block_ram(design) + ports + _block_rams(WORD_BITS, MOST_CHUNKS)


def arena_sizes(part: Part, pes: int) -> Iterator[int]:
    """Words of a bank of the arenas that fill whole UltraRAM, the smallest first, up to all of the part's."""
    wide = pes * _side_by_side(WORD_BITS)
    largest = 0
    for deep in range(2, part.uram // wide + 1):
        # Sums take 5/8 of the words and rows 3/8, each in whole UltraRAM.
        words = max(
            min(-(-URAM_DEPTH * sums * 8 // 5), URAM_DEPTH * (deep - sums) * 8 // 3)
            for sums in range(1, deep)
        )
        # One more may help neither memory.
        if words > largest:
            yield words
        largest = max(largest, words)


def short(part: Part, needs: Resources) -> list[tuple[str, int, int]]:
    """Resources that run out: name, what is needed and what the part has."""
    return [
        (field.name, getattr(needs, field.name), getattr(part, field.name))
        for field in fields(needs)
        if getattr(needs, field.name) > getattr(part, field.name)
    ]


def refuse(part: Part, needs: Resources) -> None:
    """Refuse what does not fit.

    Raises
    ------
    ValueError
        Naming each resource that runs out, what is needed and what the part has.
    """
    found = short(part, needs)
    if found:
        listed = ", ".join(f"{name} {need:,} of {have:,}" for name, need, have in found)
        remedies = ", ".join(dict.fromkeys(_REMEDIES[name] for name, _, _ in found))
        raise ValueError(f"the design does not fit {part.name}: it needs {listed}: reduce {remedies}")


def _in_block_ram(design: FpgaDesign) -> bool:
    """Whether the queues are too deep for shift registers."""
    return design.fifo_depth > SHIFT_REGISTER_DEPTH


def _side_by_side(bits: int) -> int:
    return math.ceil(bits / MEMORY_BITS)


def _block_rams(bits: int, depth: int) -> int:
    """Block RAM of a memory with one port for reading and one for writing."""
    return _side_by_side(bits) * math.ceil(depth / BRAM_DEPTH)
