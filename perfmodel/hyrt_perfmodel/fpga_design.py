"""Parameters of an FPGA trainer, and the cycles of its systolic array."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hyrt_perfmodel.validation import Count, NonNegative, Positive, check_numbers

LANES = 16
"""Number of values per word; rows are aggregated in chunks of this size."""
VALUE_BYTES = 4
EDGE_BYTES = 16
_MAX_PES = 64
_MEASURED = frozenset(
    {"adder_latency", "clock_hz", "update_ii", "network_ii", "edge_ii", "ddr_efficiency", "launch_s"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaDesign:
    """Design of one compute unit of the FPGA trainer.

    Raises ValueError for an invalid size or rate, an efficiency above 1, or an unknown name in `assumed`.
    """

    pes: Count = 8
    """Number of scatter units and of gather units in the aggregation network (n), at most 64."""
    mac_rows: Count = 32
    mac_cols: Count = 64
    """Number of columns of the systolic array, in cells of LANES columns; m is `mac_rows` times this."""
    fifo_depth: Count = 32
    """Capacity of each of the n x n queues in messages."""
    adder_latency: Count = 7
    """Number of cycles between reading a sum and being able to read the updated sum."""
    clock_hz: Positive = 300e6
    update_ii: Count = 1
    """Number of cycles between two operands of a multiply-accumulate unit of the array."""
    network_ii: Count = 1
    edge_ii: Count = 1
    """Number of cycles between two edge reads; `network_ii` is that between two words of the network."""
    ddr_bytes_per_s: Positive = 77e9
    ddr_efficiency: Positive = 0.8
    """Fraction of the peak memory bandwidth, `ddr_bytes_per_s`, that bursts reach."""
    launch_s: NonNegative = 1e-4
    """Fixed cost of starting a task in seconds."""
    assumed: frozenset[str] = _MEASURED
    """Names of the fields that no build or board has confirmed; build reports remove names."""

    def __post_init__(self) -> None:
        check_numbers("FPGA design", self)
        if self.pes > _MAX_PES:
            raise ValueError(f"FPGA design: pes must be at most {_MAX_PES}, got {self.pes}")
        if self.ddr_efficiency > 1:
            raise ValueError(f"FPGA design: ddr_efficiency must be at most 1, got {self.ddr_efficiency}")
        known = {field.name for field in fields(self)} - {"assumed"}
        if unknown := sorted(self.assumed - known):
            raise ValueError(
                f"FPGA design: assumed has the unknown fields {', '.join(unknown)}: choose from "
                f"{', '.join(sorted(known))}"
            )

    @property
    def macs(self) -> int:
        """Number of multiply-accumulate units in the array (m)."""
        return self.mac_rows * self.mac_cols

    @property
    def mac_cells(self) -> int:
        """Number of columns of cells in the array. A cell has LANES multiply-accumulate units (one word)."""
        return num_chunks(self.mac_cols)

    @property
    def ddr_bytes_per_cycle(self) -> float:
        """Number of bytes that bursts transfer per kernel cycle."""
        return self.ddr_bytes_per_s * self.ddr_efficiency / self.clock_hz


def num_chunks(width: int) -> int:
    """Return the number of words in a row of `width` values."""
    return -(-width // LANES)


def row_words(width: int, value_bytes: int) -> int:
    """Return the memory words of a feature row, which consists of chunks that may share a word."""
    return -(-num_chunks(width) * value_bytes // VALUE_BYTES)


FOLD_STEPS = 36
"""Number of steps that add up the partial sums (kernels/systolic.hpp).

Each multiply-accumulate unit uses 8 partial sums in turn, so that an addition starts in each cycle although
it takes several cycles. Three halvings of 12 steps each reduce the partial sums to one."""


def systolic_cycles(rows: int, k: int, cols: int, design: FpgaDesign, *, overlapped: bool = False) -> int:
    """Return the cycles of the product [rows, k] x [k, cols] without draining, or 0 if a size is 0.

    The array is output stationary: R x C cells, each of which sums LANES values of an output tile. R is
    `FpgaDesign.mac_rows`, C is `mac_cells`. A value of the left matrix enters at the left of its row and
    moves right; a word of the right matrix enters at the top of its column and moves down; one step k starts
    every `update_ii` cycles. Delay lines skew the inputs by one cycle per row and column of distance from the
    corner, so the farthest cell starts R + C - 2 cycles after the first.

    A tile over K steps takes (K - 1) * update_ii + R + C - 1 cycles: K + R + C - 2 at an interval of 1.
    Partial tiles at the edges of a product take as long as full tiles. The kernel's tiles do not overlap: the
    array empties, the partial sums of a multiply-accumulate are added up, and the rows are written one after
    the other (`drain_cycles`). With `overlapped=True`, each tile immediately follows the previous one, as the
    array itself would allow: `hls/hyrt_hls/rtl/systolic_array.sv` is that array in SystemVerilog, and a test
    checks that it, a register-level simulation and `systolic_cycles` agree.
    """
    if min(rows, k, cols) < 0:
        raise ValueError(f"systolic array: sizes must be at least 0, got [{rows}, {k}] and [{k}, {cols}]")
    if min(rows, k, cols) == 0:
        return 0
    tiles = num_tiles(rows, cols, design)
    skew = design.mac_rows + design.mac_cells - 1
    if overlapped:
        return (tiles * k - 1) * design.update_ii + skew
    return tiles * ((k - 1) * design.update_ii + skew)


def num_tiles(rows: int, cols: int, design: FpgaDesign) -> int:
    """Return the number of tiles of a [rows, cols] product."""
    return -(-rows // design.mac_rows) * -(-cols // (design.mac_cells * LANES))


def drain_cycles(design: FpgaDesign) -> int:
    """Return the cycles between the last operands of a tile and the first operands of the next tile."""
    return FOLD_STEPS * design.update_ii + design.mac_rows
