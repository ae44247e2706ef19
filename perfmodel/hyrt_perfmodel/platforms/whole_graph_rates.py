"""What steps over whole graphs were measured to take on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hyrt_perfmodel.checks import Count, NotNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.platforms.host_tables import between
from hyrt_perfmodel.workloads.whole_graph import EdgeReads, GatherKind, WholeGraphStep

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """Reading rows of a matrix along the edges of a random graph, and combining them."""

    kind: GatherKind
    """How they are combined. A maximum is not measured: it reads as a sum does, and backward two rows."""
    back: bool
    """Whether gradients are taken back; of sums, which are the same both ways, never."""
    matrix_bytes: Positive
    """Size of the matrix: what lies in a cache is read faster."""
    row_s: NotNegative
    """What a row costs whatever its width."""
    gb_s: Positive
    """1e9 bytes a second of rows."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph: reads", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    """Loops over edges that are compiled for a kind of model, forward and backward alike."""

    edge_s: NotNegative
    """What an edge costs whatever the width of its message."""
    value_s: NotNegative
    """What each column of the message costs."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph: loops", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraphRates:
    """How fast whole graphs are computed with all cores; fewer threads take longer in proportion."""

    threads: Count
    """Threads of the CPU trainer when it was measured."""
    reads: tuple[ReadCost, ...]
    """Gathering along edges."""
    mask_s: NotNegative
    """What the mask of attention costs for an edge and a head."""
    call_s: NotNegative
    """What a pass over a chunk of rows costs whatever its size."""
    macs_per_s: Unbounded
    """Multiply-accumulates a second."""
    values_per_s: Unbounded
    """Numbers a second that passes over rows read and write."""
    loops: Mapping[str, LoopCost] = field(default_factory=dict)
    """By kind of model, for those that were measured; none of the four kinds that have loops of no kind."""

    looped: Mapping[str, float] = field(default_factory=dict)
    """How many times as long as these operators the loops take that are compiled where the graph is trained
    in chunks, by what they combine: `sum`, `max`, `attention`, and `attention back` of its gradients. Empty
    where nobody measured it."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph", self)

    def knows(self, step: WholeGraphStep, model: str) -> bool:
        """Whether all that a step of a kind of model gathers was measured."""
        return model in self.loops or all(each.kind != "loops" for each in step.reads)

    def reads_s(self, reads: Sequence[EdgeReads], threads: int, model: str = "") -> float:
        """Time of gathering with some threads, for a kind of model that `knows`."""
        return sum(self._read_s(each, model) for each in reads) * self.threads / threads

    def looped_s(self, reads: Sequence[EdgeReads], threads: int, model: str = "") -> float | None:
        """Time of gathering by loops, as in chunks; None where it was not measured."""
        total = 0.0
        for each in reads:
            what = f"{each.kind} back" if each.kind == "attention" and each.back else each.kind
            times = 1.0 if each.kind == "loops" else self.looped.get(what)
            if times is None:
                return None
            total += times * self._read_s(each, model)
        return total * self.threads / threads

    def rows_s(self, step: WholeGraphStep, threads: int) -> float:
        """Time of the passes over rows with some threads, without products of sparse rows."""
        seconds = step.calls * self.call_s + step.macs / self.macs_per_s + step.values / self.values_per_s
        return seconds * self.threads / threads

    def _read_s(self, reads: EdgeReads, model: str) -> float:
        if reads.kind == "loops":
            cost = self.loops[model]
            return reads.rows * (cost.edge_s + reads.width * cost.value_s)
        kind: GatherKind = "sum" if reads.kind == "max" else reads.kind
        # Backward, a maximum reads the gradient's row and who has won each of its columns.
        rows = reads.rows * (2 if reads.kind == "max" and reads.back else 1)
        row_s = self._row_s(kind, reads.back, reads.sources, reads.width)
        seconds = rows * (row_s + reads.masked_heads * self.mask_s)
        # An edge that leads nowhere costs the look where it leads: one number of each vertex.
        return seconds + (reads.passed * self._row_s("sum", False, reads.sources, 1) if reads.passed else 0.0)

    def _row_s(self, kind: GatherKind, back: bool, sources: float, width: int) -> float:
        back = back and kind != "sum"
        row_bytes = width * _FLOAT_BYTES
        found = [each for each in self.reads if (each.kind, each.back) == (kind, back)]
        return between(
            sources * row_bytes,
            {each.matrix_bytes: each.row_s + row_bytes / (each.gb_s * 1e9) for each in found},
        )
