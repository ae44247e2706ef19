"""What chunks of whole graphs were measured to take on the CPU, where torch's operators compute them."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt_perfmodel.checks import Count, NotNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.platforms.host_tables import between
from hyrt_perfmodel.workloads.chunk_work import ChunkShape, GatheringLayer

_FLOAT_BYTES = 4
# Numbers of the rows that are gathered at a time.
_PIECE_NUMBERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReadCost:
    """Reading rows along edges, and adding them up by destination."""

    matrix_bytes: Positive
    """Size of the rows that are read from: what lies in a cache is read faster."""
    edge_s: NotNegative
    """What an edge costs whatever the width of its row."""
    gb_s: Positive
    """1e9 bytes a second of rows."""

    def __post_init__(self) -> None:
        check_numbers("chunks: reads", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChunkRates:
    """How fast so many threads copy and compute chunks, by turns."""

    threads: Count
    """Threads that were measured."""
    copy_gb_s: Positive
    """1e9 bytes a second of sums and results that are copied from where chunks are computed, and back."""
    reads: tuple[ChunkReadCost, ...]
    """Gathering along edges."""
    factor_s: NotNegative
    """What a factor of the row that is read costs, for an edge."""
    factor_value_s: NotNegative
    """The same for each of the row's columns."""
    row_s: NotNegative
    """What a row that is added to costs whatever its width, in each chunk."""
    row_value_s: NotNegative
    """The same for each of its columns."""
    call_s: NotNegative
    """What a piece of a chunk costs whatever its size."""
    macs_per_s: Unbounded
    """Multiply-accumulates a second."""
    values_per_s: Unbounded
    """Numbers of results a second that passes over rows read: activations, their gradients, biases."""
    drawn_per_s: Unbounded
    """Numbers a second for which dropout draws."""
    scores_per_s: Unbounded
    """Scores a second whose loss and gradient are taken."""

    copies_itself = True
    """What computes also copies, so that nothing is hidden behind anything else."""

    def __post_init__(self) -> None:
        check_numbers("host: chunks", self)
        if not self.reads:
            raise ValueError("host: chunks: reads is empty: give what reading rows costs")

    @property
    def link_bytes_per_s(self) -> float:
        """At which rows come and go: in memory."""
        return self.copy_gb_s * 1e9

    def copy_s(self, size: float) -> float:
        """Seconds for copying `size` bytes of rows in memory."""
        return size / self.link_bytes_per_s

    def bring_s(self, size: float) -> float:
        """Rows are read where they lie."""
        return 0.0

    def edges_s(self, edges: float) -> float:
        """So are edges."""
        return 0.0

    def drop_read_s(self, size: float) -> float:
        """Seconds for dropout of `size` bytes of rows that are read, which are copied for that."""
        return self.copy_s(size) + self.drop_s(size / _FLOAT_BYTES)

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Seconds for gathering rows along the edges of a chunk; with no edges there is nothing to do."""
        if not shape.edges:
            return 0.0
        row_bytes = shape.width * _FLOAT_BYTES
        read_s = between(
            max(1.0, shape.read_rows * row_bytes),
            {each.matrix_bytes: each.edge_s + row_bytes / (each.gb_s * 1e9) for each in self.reads},
        )
        if shape.scaled:
            read_s += self.factor_s + shape.width * self.factor_value_s
        row_s = self.row_s + shape.width * self.row_value_s
        pieces = max(1.0, shape.edges * shape.width / _PIECE_NUMBERS)
        return pieces * self.call_s + shape.edges * read_s + shape.rows * row_s

    def drop_s(self, numbers: float) -> float:
        """Seconds for dropout of so many numbers."""
        return numbers / self.drawn_per_s

    def forward_s(self, rows: float, layer: GatheringLayer) -> float:
        """Seconds for a layer's products, its activations and its dropout."""
        seconds = self.call_s + rows * (layer.weights / self.macs_per_s + layer.made / self.values_per_s)
        return seconds + (self.drop_s(rows * layer.out) if layer.drops else 0.0)

    def back_s(self, rows: float, layer: GatheringLayer, *, wanted: bool) -> float:
        """Seconds for the gradients of a layer's weights and, where it is wanted, of what it has gathered."""
        macs_s = layer.back_macs(wanted=wanted) / self.macs_per_s
        return self.call_s + rows * (macs_s + layer.made / self.values_per_s)

    def loss_s(self, rows: float, classes: int) -> float:
        """Seconds for the loss of scores, and its gradient."""
        return self.call_s + rows * classes / self.scores_per_s
