"""What a build of the FPGA trainer is: its size, and the rates that only a real build knows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hyrt_perfmodel.checks import Count, NotNegative, Positive, check_numbers

LANES = 16
"""Values of a word: a row is aggregated in chunks of so many."""
VALUE_BYTES = 4
EDGE_BYTES = 16
_MOST_PES = 64
_MEASURED = frozenset(
    {"adder_latency", "clock_hz", "update_ii", "network_ii", "edge_ii", "ddr_efficiency", "launch_s"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaDesign:
    """One compute unit of the trainer on one part.

    Raises
    ------
    ValueError
        If a size is no whole number of at least 1, a rate not positive, the efficiency above 1, or `assumed`
        names no field.
    """

    pes: Count = 8
    """n, scatter units and gather units of the aggregate network; at most 64."""
    mac_rows: Count = 32
    mac_cols: Count = 64
    """`mac_rows` and `mac_cols`: rows and columns of the systolic array; m is their product. Columns come in
    cells of LANES."""
    fifo_depth: Count = 32
    """Messages that fit into each of the n x n queues."""
    adder_latency: Count = 7
    """Cycles from reading a sum to reading it again with the value added."""
    clock_hz: Positive = 300e6
    """The clock of the kernel."""
    update_ii: Count = 1
    """Cycles between two operands of a multiply-accumulate of the array."""
    network_ii: Count = 1
    edge_ii: Count = 1
    """`network_ii` and `edge_ii`: cycles between two words of the network's slowest unit, and between two
    edges that are read."""
    ddr_bytes_per_s: Positive = 77e9
    ddr_efficiency: Positive = 0.8
    """`ddr_bytes_per_s` and `ddr_efficiency`: peak bandwidth of the memory, and the part of it that bursts
    reach."""
    launch_s: NotNegative = 1e-4
    """What starting a task costs whatever its size."""
    assumed: frozenset[str] = _MEASURED
    """Names of fields that no build and no board has confirmed; a report of a build takes them out."""

    def __post_init__(self) -> None:
        check_numbers("FPGA design", self)
        if self.pes > _MOST_PES:
            raise ValueError(f"FPGA design: pes is {self.pes}: give at most {_MOST_PES}")
        if self.ddr_efficiency > 1:
            raise ValueError(
                f"FPGA design: ddr_efficiency is {self.ddr_efficiency}: give a fraction of at most 1"
            )
        known = {field.name for field in fields(self)} - {"assumed"}
        if unknown := sorted(self.assumed - known):
            raise ValueError(
                f"FPGA design: assumed lists {', '.join(unknown)}, but the fields are "
                f"{', '.join(sorted(known))}"
            )

    @property
    def macs(self) -> int:
        """m, multiply-accumulates of the array."""
        return self.mac_rows * self.mac_cols

    @property
    def mac_cells(self) -> int:
        """Columns of cells of the array: a cell is a word of LANES multiply-accumulates wide."""
        return num_chunks(self.mac_cols)

    @property
    def ddr_bytes_per_cycle(self) -> float:
        """Bytes that bursts bring in a cycle of the kernel."""
        return self.ddr_bytes_per_s * self.ddr_efficiency / self.clock_hz


def num_chunks(width: int) -> int:
    """Words of a row of `width` values."""
    return -(-width // LANES)


def row_words(width: int, value_bytes: int) -> int:
    """Words of memory of a feature row of `width` values: whole chunks, of which a word may hold several."""
    return -(-num_chunks(width) * value_bytes // VALUE_BYTES)
