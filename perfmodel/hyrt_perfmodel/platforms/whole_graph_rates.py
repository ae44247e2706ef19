"""Measured CPU rates of full-graph steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hyrt_perfmodel.checks import Count, NotNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.platforms.host_tables import between
from hyrt_perfmodel.workloads.whole_graph import EdgeReads, GatherKind, WholeGraphStep

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """Cost of reading rows of a matrix along the edges of a random graph, and of combining the rows."""

    kind: GatherKind
    """Reduction. Maximum is not measured: it costs as much as a sum, and twice as many rows backward."""
    back: bool
    """Whether the reads are of a backward pass; always False for sums, which cost the same in both
    directions.
    """
    matrix_bytes: Positive
    """Size of the matrix; matrices that fit in a cache are read faster."""
    row_s: NotNegative
    """Cost per row, independent of width."""
    gb_s: Positive
    """Row bandwidth, in 1e9 bytes per second."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph: reads", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    """Cost of the edge loops that are compiled for a kind of model, the same forward and backward."""

    edge_s: NotNegative
    """Cost per edge, independent of message width."""
    value_s: NotNegative
    """Cost per message column."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph: loops", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraphRates:
    """Rates of full-graph steps with all cores; with fewer threads, time grows in proportion."""

    threads: Count
    """Threads of the CPU trainer during the measurement."""
    reads: tuple[ReadCost, ...]
    """Costs of gathering along edges."""
    mask_s: NotNegative
    """Cost of the attention mask per edge and head."""
    call_s: NotNegative
    """Fixed cost of one pass over a chunk of rows."""
    macs_per_s: Unbounded
    """Multiply-accumulates per second."""
    values_per_s: Unbounded
    """Values per second that row-wise passes read and write."""
    loops: Mapping[str, LoopCost] = field(default_factory=dict)
    """Loop costs per measured kind of model; the four kinds with hand-written operators have no entry."""

    looped: Mapping[str, float] = field(default_factory=dict)
    """Time of the compiled loops used in chunked training relative to these operators, per reduction: `sum`,
    `max`, `attention`, and `attention back` for its gradients. Empty if not measured.
    """

    def __post_init__(self) -> None:
        check_numbers("whole_graph", self)

    def knows(self, step: WholeGraphStep, model: str) -> bool:
        """Return whether every gather in a step of a kind of model was measured."""
        return model in self.loops or all(reads.kind != "loops" for reads in step.reads)

    def reads_s(self, reads: Sequence[EdgeReads], threads: int, model: str = "") -> float:
        """Return the time to gather with a number of threads, for a kind of model that `knows` accepts."""
        return sum(self._read_s(item, model) for item in reads) * self.threads / threads

    def looped_s(self, reads: Sequence[EdgeReads], threads: int, model: str = "") -> float | None:
        """Return the time to gather with compiled loops, as in chunks; None if not measured."""
        total = 0.0
        for item in reads:
            reduction = f"{item.kind} back" if item.kind == "attention" and item.back else item.kind
            factor = 1.0 if item.kind == "loops" else self.looped.get(reduction)
            if factor is None:
                return None
            total += factor * self._read_s(item, model)
        return total * self.threads / threads

    def rows_s(self, step: WholeGraphStep, threads: int) -> float:
        """Return the time of row-wise passes with a number of threads, excluding products of sparse rows."""
        seconds = step.calls * self.call_s + step.macs / self.macs_per_s + step.values / self.values_per_s
        return seconds * self.threads / threads

    def _read_s(self, reads: EdgeReads, model: str) -> float:
        if reads.kind == "loops":
            cost = self.loops[model]
            return reads.rows * (cost.edge_s + reads.width * cost.value_s)
        kind: GatherKind = "sum" if reads.kind == "max" else reads.kind
        # The backward pass of a maximum reads the gradient row and the winning source of each column.
        rows = reads.rows * (2 if reads.kind == "max" and reads.back else 1)
        row_s = self._row_s(kind, reads.back, reads.sources, reads.width)
        seconds = rows * (row_s + reads.masked_heads * self.mask_s)
        # An edge that leads to no row still costs a lookup of its endpoint: one value per vertex.
        return seconds + (reads.passed * self._row_s("sum", False, reads.sources, 1) if reads.passed else 0.0)

    def _row_s(self, kind: GatherKind, is_backward: bool, sources: float, width: int) -> float:
        is_backward = is_backward and kind != "sum"
        row_bytes = width * _FLOAT_BYTES
        costs = [cost for cost in self.reads if (cost.kind, cost.back) == (kind, is_backward)]
        return between(
            sources * row_bytes,
            {cost.matrix_bytes: cost.row_s + row_bytes / (cost.gb_s * 1e9) for cost in costs},
        )
