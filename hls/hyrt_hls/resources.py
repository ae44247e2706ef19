"""Estimates of the FPGA resources of a trainer before it is built.

Logic and DSPs follow the published model of HP-GNN (Lin, Zhang, Prasanna, "HP-GNN: Generating High Throughput
GNN Training Implementation on CPU-FPGA Heterogeneous Platform", FPGA 2022), whose trainer has the same two
kernels. Memories follow the widths and depths in UG573 (UltraScale memory resources). Flip-flops are not
estimated: no model is published, and they are not the limit, because parts have twice as many flip-flops as
LUTs. The report of a build replaces all estimates (`apply_reports`).

The paper's Table IV (n = 8, m = 2048 on a U250) reports DSP 0.90, LUT 0.72, URAM 0.48, BRAM 0.40. HP-GNN's
formulas alone give DSP 0.906 and LUT 0.722. This estimate gives LUT 0.799, because it adds the LUT memory of
these kernels (n x n queues, eight partial sums per multiply-accumulate unit); URAM 0.45 with the default
arena; and BRAM 0.03, because these kernels store the arena and the weights in UltraRAM. It covers one array
and one network, but not the loss, the dropout generator (64-bit products), the control logic and the
platform's shell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from hyrt_perfmodel.fpga_design import LANES, FpgaDesign
from hyrt_perfmodel.validation import Count, check_numbers

from hyrt_hls.fpga_part import FpgaPart
from hyrt_hls.task_layout import MAX_CHUNKS, PANEL_ROWS, row_base

# HP-GNN: DSPs of an fp32 multiply-accumulate unit, and of a scatter and gather unit (16 lanes each).
DSP_PER_MAC = 5
DSP_PER_PE = 112
LUT_PER_MAC = 470
LUT_PER_PE = 21_715
LUT_PER_ROUTE = 4_610
# UG573: an UltraRAM is 4096 x 72 bits; a 36 Kb block RAM with one read and one write port is 512 x 72.
MEMORY_BITS = 72
URAM_DEPTH = 4096
BRAM_DEPTH = 512
# UG574: a LUT of a SLICEM can be a 32-bit shift register.
SHIFT_REGISTER_DEPTH = 32
WORD_BITS = 512
VALUE_BITS = 32
# UG574: eight LUTs of a SLICEM store 32 x 14 bits with one write and one read port. The final reduction reads
# two sums at a time.
LUTS_PER_MEMORY, MEMORY_TABLE_BITS, SUMS_READ = 8, 14, 2
STREAM_BITS = 4096
"""Maximum width of a stream in Vitis HLS 2023.2 (Xilinx/Vitis-Tutorials issue 426)."""
# Ports of the kernel (kernels/trainer.cpp): width in bits, and number of words in flight. Except for
# features, these are 16 bursts of 16 words, the default of Vitis HLS.
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
# Metadata of each word in the network: its address (32 bits), and whether it is the last word (1 bit).
ADDRESS_BITS = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Numbers of DSP48E2, six-input LUTs, 36 Kb block RAMs and 288 Kb UltraRAMs that a design uses."""

    dsp: int
    lut: int
    bram36: int
    uram: int

    def fractions_of(self, part: FpgaPart) -> dict[str, float]:
        """Return the used fraction of each resource of a part, by name."""
        return {field.name: getattr(self, field.name) / getattr(part, field.name) for field in fields(self)}

    def scaled(self, units: int) -> Resources:
        """Return the resources of `units` compute units."""
        return Resources(**{field.name: units * getattr(self, field.name) for field in fields(self)})


@dataclass(frozen=True, slots=True)
class KernelDesign:
    """Size parameters of a trainer. Raises ValueError if the kernels do not support these sizes."""

    pes: Count = 8
    """Number of scatter units, of gather units and of arena banks (n in the paper)."""
    mac_rows: Count = 32
    mac_cols: Count = 64
    """Number of array columns, a multiple of LANES. The number of rows, `mac_rows`, is a multiple of `pes`,
    and a multiple or divisor of LANES. Their product is m in the paper."""
    arena_words: Count = 32768
    """Number of words per arena bank."""
    fifo_depth: Count = 32
    """Number of messages per queue of the network, at least 2."""

    def __post_init__(self) -> None:
        check_numbers("design", self)
        try:
            check_buildable(self.design, self.arena_words)
        except ValueError as error:
            raise ValueError(f"design: {error}") from error

    @property
    def design(self) -> FpgaDesign:
        """Return the design as the cycle model represents it."""
        return FpgaDesign(
            pes=self.pes, mac_rows=self.mac_rows, mac_cols=self.mac_cols, fifo_depth=self.fifo_depth
        )


def check_buildable(design: FpgaDesign, arena_words: int) -> None:
    """Raise ValueError if a size violates the static_asserts of kernels/design.hpp."""
    rows, cols = design.mac_rows, design.mac_cols
    if cols % LANES:
        raise ValueError(f"mac_cols must be a multiple of {LANES}, the values of a word, got {cols}")
    if rows % design.pes:
        raise ValueError(
            f"mac_rows must be a multiple of pes ({design.pes}), so that every bank has rows, got {rows}"
        )
    if rows % LANES and LANES % rows:
        raise ValueError(f"mac_rows must be a multiple of {LANES}, or 1, 2, 4 or 8, got {rows}")
    if design.fifo_depth < 2:
        raise ValueError(f"fifo_depth must be at least 2, got {design.fifo_depth}")
    if arena_words < 2:
        raise ValueError(f"arena_words must be at least 2, one for sums and one for rows, got {arena_words}")


def widest_stream_bits(design: FpgaDesign) -> int:
    """Return the bits of the widest stream: a word per bank, or a value per row or column of the array."""
    return max(WORD_BITS * design.pes, VALUE_BITS * design.mac_rows, VALUE_BITS * design.mac_cols)


def estimate_resources(design: FpgaDesign, arena_words: int) -> Resources:
    """Estimate the resources of a compute unit with `arena_words` words of 16 floats per bank."""
    if arena_words < 1:
        raise ValueError(f"arena: arena_words must be at least 1, got {arena_words}")
    return Resources(
        dsp=estimate_dsp(design),
        lut=estimate_lut(design),
        bram36=estimate_bram36(design),
        uram=estimate_uram(design, arena_words),
    )


def estimate_dsp(design: FpgaDesign) -> int:
    """Return the DSPs by HP-GNN's formula, 5 m + 112 n."""
    return DSP_PER_MAC * design.macs + DSP_PER_PE * design.pes


def published_lut(design: FpgaDesign) -> int:
    """Return the LUTs by HP-GNN's formula for a butterfly network, 470 m + 21715 n + 4610 n log2 n."""
    routes = design.pes * math.log2(design.pes)
    return math.ceil(LUT_PER_MAC * design.macs + LUT_PER_PE * design.pes + LUT_PER_ROUTE * routes)


def estimate_lut(design: FpgaDesign) -> int:
    """Return the LUTs of HP-GNN's formula, n x n queues in shift registers, and partial sums of m cells."""
    sums = SUMS_READ * LUTS_PER_MEMORY * math.ceil(VALUE_BITS / MEMORY_TABLE_BITS) * design.macs
    queues = 0 if _uses_block_ram(design) else design.pes**2 * (WORD_BITS + ADDRESS_BITS)
    return published_lut(design) + queues + sums


def estimate_uram(design: FpgaDesign, arena_words: int) -> int:
    """Return the UltraRAMs of the arena and a weight panel; their memories are 512 bits (8 UltraRAMs) wide.

    The arena has n banks with two memories each (`task_layout.row_base`). The panel has one memory per 16
    columns of the array. An UltraRAM is 4096 words deep.
    """
    sums = row_base(arena_words)
    depth = math.ceil(sums / URAM_DEPTH) + math.ceil((arena_words - sums) / URAM_DEPTH)
    panel = math.ceil(design.mac_cols / LANES) * math.ceil(PANEL_ROWS / URAM_DEPTH)
    return _parallel_memories(WORD_BITS) * (design.pes * depth + panel)


def estimate_bram36(design: FpgaDesign) -> int:
    """Return the block RAMs of port buffers, the duplicator's row buffer, and queues too deep for LUTs."""
    queues = design.pes**2 * _block_rams(WORD_BITS + ADDRESS_BITS, design.fifo_depth)
    ports = sum(_block_rams(bits, words) for bits, words in PORTS.values())
    return queues * _uses_block_ram(design) + ports + _block_rams(WORD_BITS, MAX_CHUNKS)


def arena_sizes(part: FpgaPart, pes: int) -> Iterator[int]:
    """Iterate over the bank sizes in words that fill whole UltraRAMs and fit the part, smallest first."""
    width = pes * _parallel_memories(WORD_BITS)
    largest = 0
    for depth in range(2, part.uram // width + 1):
        # The sum memory has 5/8 of a bank's words and the row memory 3/8, each in whole UltraRAMs.
        words = max(
            min(-(-URAM_DEPTH * sums * 8 // 5), URAM_DEPTH * (depth - sums) * 8 // 3)
            for sums in range(1, depth)
        )
        # Skip sizes at which an additional UltraRAM does not increase the usable number of words.
        if words > largest:
            yield words
        largest = max(largest, words)


def find_shortages(part: FpgaPart, needs: Resources) -> list[tuple[str, int, int]]:
    """Return (name, required, available) of each resource that a design exceeds."""
    return [
        (field.name, getattr(needs, field.name), getattr(part, field.name))
        for field in fields(needs)
        if getattr(needs, field.name) > getattr(part, field.name)
    ]


def check_fits(part: FpgaPart, needs: Resources) -> None:
    """Raise ValueError, with the required and available amounts, if a design exceeds a resource."""
    shortages = find_shortages(part, needs)
    if shortages:
        listed = ", ".join(f"{name} {required:,} of {available:,}" for name, required, available in shortages)
        remedies = ", ".join(dict.fromkeys(_REMEDIES[name] for name, _, _ in shortages))
        raise ValueError(f"the design does not fit {part.name}, because it needs {listed}: reduce {remedies}")


def _uses_block_ram(design: FpgaDesign) -> bool:
    """Return whether queues need block RAM because they are too deep for shift registers."""
    return design.fifo_depth > SHIFT_REGISTER_DEPTH


def _parallel_memories(bits: int) -> int:
    return math.ceil(bits / MEMORY_BITS)


def _block_rams(bits: int, depth: int) -> int:
    """Return the number of block RAMs for a memory with one read port and one write port."""
    return _parallel_memories(bits) * math.ceil(depth / BRAM_DEPTH)
