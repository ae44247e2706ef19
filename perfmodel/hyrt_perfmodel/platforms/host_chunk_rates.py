"""Measured CPU rates of full-graph chunks computed with torch operators."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt_perfmodel.checks import Count, NotNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.platforms.host_tables import between
from hyrt_perfmodel.workloads.chunk_work import ChunkShape, GatheringLayer

_VALUE_BYTES = 4
# Values that are gathered at a time.
_PIECE_VALUES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReadCost:
    """Cost of reading rows along edges and summing them by destination."""

    matrix_bytes: Positive
    """Size of the source matrix; matrices that fit in a cache are read faster."""
    edge_s: NotNegative
    """Cost per edge, independent of row width."""
    gb_s: Positive
    """Row bandwidth, in 1e9 bytes per second."""

    def __post_init__(self) -> None:
        check_numbers("chunks: reads", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChunkRates:
    """Rates at which a number of threads copy and compute chunks, alternating between the two."""

    threads: Count
    """Number of threads during the measurement."""
    copy_gb_s: Positive
    """Copy bandwidth of sums and results to and from the chunk buffers, in 1e9 bytes per second."""
    reads: tuple[ChunkReadCost, ...]
    """Costs of gathering along edges, per matrix size."""
    factor_s: NotNegative
    """Cost per edge of scaling its source row."""
    factor_value_s: NotNegative
    """Cost per edge and column of scaling its source row."""
    row_s: NotNegative
    """Cost per destination row and chunk, independent of width."""
    row_value_s: NotNegative
    """Cost per column of a destination row."""
    call_s: NotNegative
    """Fixed cost per piece of a chunk."""
    macs_per_s: Unbounded
    """Multiply-accumulates per second."""
    values_per_s: Unbounded
    """Result values per second that row-wise passes read: activations, their gradients, biases."""
    drawn_per_s: Unbounded
    """Random numbers per second that dropout generates."""
    scores_per_s: Unbounded
    """Scores per second for which loss and gradient are computed."""

    copies_itself = True
    """The compute threads also copy, so copies are never hidden behind computation."""

    def __post_init__(self) -> None:
        check_numbers("host: chunks", self)
        if not self.reads:
            raise ValueError("host: chunks: reads is empty: give what reading rows costs")

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of row copies, which stay in host memory."""
        return self.copy_gb_s * 1e9

    def copy_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes of rows in memory."""
        return size / self.link_bytes_per_s

    def bring_s(self, size: float) -> float:
        """Return 0: rows are read in place."""
        return 0.0

    def edges_s(self, edges: float) -> float:
        """Return 0: edges are read in place."""
        return 0.0

    def drop_read_s(self, size: float) -> float:
        """Return the seconds of dropout on `size` bytes of source rows, which are copied first."""
        return self.copy_s(size) + self.drop_s(size / _VALUE_BYTES)

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Return the seconds to gather rows along the edges of a chunk; 0 if there are no edges."""
        if not shape.edges:
            return 0.0
        row_bytes = shape.width * _VALUE_BYTES
        read_s = between(
            max(1.0, shape.read_rows * row_bytes),
            {cost.matrix_bytes: cost.edge_s + row_bytes / (cost.gb_s * 1e9) for cost in self.reads},
        )
        if shape.scaled:
            read_s += self.factor_s + shape.width * self.factor_value_s
        row_s = self.row_s + shape.width * self.row_value_s
        pieces = max(1.0, shape.edges * shape.width / _PIECE_VALUES)
        return pieces * self.call_s + shape.edges * read_s + shape.rows * row_s

    def drop_s(self, numbers: float) -> float:
        """Return the seconds of dropout on `numbers` values."""
        return numbers / self.drawn_per_s

    def forward_s(self, rows: float, layer: GatheringLayer) -> float:
        """Return the seconds of a layer's products, activations and dropout."""
        seconds = self.call_s + rows * (layer.weights / self.macs_per_s + layer.made / self.values_per_s)
        return seconds + (self.drop_s(rows * layer.out) if layer.drops else 0.0)

    def back_s(self, rows: float, layer: GatheringLayer, *, wanted: bool) -> float:
        """Return the seconds of a layer's weight gradients and, if `wanted`, of the gradient of its gathered
        input.
        """
        macs_s = layer.back_macs(wanted=wanted) / self.macs_per_s
        return self.call_s + rows * (macs_s + layer.made / self.values_per_s)

    def loss_s(self, rows: float, classes: int) -> float:
        """Return the seconds to compute the loss of the scores and its gradient."""
        return self.call_s + rows * classes / self.scores_per_s
