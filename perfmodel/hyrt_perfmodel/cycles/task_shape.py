"""Sizes of an FPGA task, which determine its cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

from numpy.typing import NDArray

from hyrt_perfmodel.cycles.closed_form import NetworkLoad
from hyrt_perfmodel.cycles.design import VALUE_BYTES
from hyrt_perfmodel.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeList:
    """Edges in kernel order: sorted by source."""

    sources: NDArray[Any]
    to: NDArray[Any]
    """`sources` and `to`: [E] integers, source row and result row of each edge."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSizes:
    """One layer of a task. Counts may be expected values and need not be whole numbers.

    Raises
    ------
    ValueError
        If a count is negative, `parts` is not 1 or 2, or a width is below 1.
    """

    rows: float
    """Number of destinations."""
    parts: int
    """Rows of the combined matrix per destination: 2 if own row and aggregate are stored separately,
    otherwise 1."""
    num_src: float
    """Number of source rows."""
    in_width: int
    out_width: int
    """`in_width` and `out_width`: values per source row and per output row."""
    edges: float
    """Edges of the forward section, including those from the destinations' own rows."""
    own_edges: float = 0.0
    """Number of edges from the destinations' own rows."""
    value_bytes: int = VALUE_BYTES
    """Bytes per value of a source row that is read from memory."""
    forward: EdgeList | None = None
    backward: EdgeList | None = None
    """`forward` and `backward`: the edge lists, if known. Otherwise statistics are derived from the counts:
    edges beyond the first of a source are distributed geometrically, and sources beyond the destinations are
    numbered in order of first occurrence."""

    def __post_init__(self) -> None:
        if min(self.rows, self.num_src, self.edges, self.own_edges) < 0 or self.own_edges > self.edges:
            raise ValueError(
                f"layer shape: {self.rows} rows, {self.num_src} sources, {self.edges} edges, "
                f"{self.own_edges} of them own ones"
            )
        if self.parts not in (1, 2):
            raise ValueError(f"layer shape: parts is {self.parts}: a destination has 1 or 2 combined rows")
        if min(self.in_width, self.out_width) < 1:
            raise ValueError(f"layer shape: widths {self.in_width} and {self.out_width}: give at least 1")

    def forward_load(self, pes: int) -> NetworkLoad:
        """Return the network load of the edges from source rows to combined rows."""
        if self.forward is not None:
            return NetworkLoad.of(self.forward.to, pes, self.forward.sources)
        new_rows = max(self.num_src - self.rows, 0.0)
        sampled = self.edges - self.own_edges
        # Each row that is not a destination has at least one edge; all rows share the remaining edges.
        excess = max(sampled - new_rows, 0.0) / self.num_src if self.num_src else 0.0
        self_edges = self.own_edges / self.rows if self.rows else 0.0
        degrees: dict[int, float] = {}
        for count, first in ((new_rows, 1.0), (self.num_src - new_rows, self_edges)):
            for more, fraction in _geometric(excess).items():
                for degree, weight in (
                    (floor(first) + more, 1 - first % 1),
                    (floor(first) + 1 + more, first % 1),
                ):
                    degrees[degree] = degrees.get(degree, 0.0) + count * fraction * weight
        return NetworkLoad.expected(degrees, pes, bank_shares=self._bank_shares(pes))

    def backward_load(self, pes: int) -> NetworkLoad:
        """Return the network load of the edges from combined rows to source rows."""
        if self.backward is not None:
            return NetworkLoad.of(self.backward.to, pes, self.backward.sources)
        degrees: dict[int, float] = {}
        if self.parts == 2:
            degrees[1] = self.own_edges
            _add_even(degrees, self.rows, self.edges - self.own_edges)
        else:
            _add_even(degrees, self.rows, self.edges)
        new_rows = max(self.num_src - self.rows, 0.0)
        return NetworkLoad.expected(
            degrees, pes, in_order=min(new_rows / self.edges, 1.0) if self.edges else 0.0
        )

    def _bank_shares(self, pes: int) -> list[float] | None:
        """Return each bank's share of edges; None for equal shares.

        With two parts, even banks hold own rows and odd banks hold aggregates.
        """
        if self.parts == 1 or pes % 2 or self.edges == 0:
            return None
        self_fraction = self.own_edges / self.edges
        return [self_fraction * 2 / pes, (1.0 - self_fraction) * 2 / pes] * (pes // 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskShape:
    """Layers of a task, input layer first, and the classes of its targets.

    Raises
    ------
    ValueError
        If there is no layer or no class.
    """

    layers: tuple[LayerSizes, ...]
    classes: int

    def __post_init__(self) -> None:
        if not self.layers or self.classes < 1:
            raise ValueError(
                f"task shape: {len(self.layers)} layers and {self.classes} classes: give at least 1 of each"
            )

    @property
    def targets(self) -> float:
        return self.layers[-1].rows

    @classmethod
    def of(cls, workload: Workload) -> TaskShape:
        """Derive the shape from expected sizes; each destination's own row counts as an edge."""
        layers = tuple(
            LayerSizes(
                rows=workload.vertices[layer],
                parts=2 if workload.concat else 1,
                num_src=workload.vertices[layer - 1],
                in_width=workload.features[layer - 1],
                out_width=workload.features[layer],
                edges=workload.edges[layer - 1] + workload.vertices[layer],
                own_edges=workload.vertices[layer],
                value_bytes=_value_bytes(workload) if layer == 1 else VALUE_BYTES,
            )
            for layer in range(1, workload.layers + 1)
        )
        return cls(layers=layers, classes=workload.features[-1])


def _value_bytes(workload: Workload) -> int:
    """Return the bytes per input value; the rest of a row is its quantization scale."""
    return next((size for size in (4, 2) if workload.dense_row_bytes >= size * workload.features[0]), 1)


def _geometric(mean: float) -> Mapping[int, float]:
    """Return probabilities of 0, 1, .. with this mean; the last entry includes the tail."""
    ratio = mean / (1.0 + mean)
    probabilities = {}
    remaining = 1.0
    for number in range(256):
        probabilities[number] = remaining * (1.0 - ratio)
        remaining *= ratio
        if remaining < 1e-4:
            break
    probabilities[number] += remaining
    return probabilities


def _add_even(degrees: dict[int, float], rows: float, edges: float) -> None:
    """Distribute edges over rows as evenly as whole numbers allow."""
    if rows <= 0:
        return
    quotient = floor(edges / rows)
    remainder = edges - quotient * rows
    for degree, count in ((quotient, rows - remainder), (quotient + 1, remainder)):
        if degree > 0:
            degrees[degree] = degrees.get(degree, 0.0) + count
