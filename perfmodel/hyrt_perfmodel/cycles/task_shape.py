"""The sizes of a task, of which its cycles follow."""

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
    """Edges in the kernel's order: sorted by source."""

    sources: NDArray[Any]
    to: NDArray[Any]
    """`sources` and `to`: [E] integers, the row each edge leaves and the row of the result that it adds to.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSizes:
    """A layer of a task. Counts may be expected ones, and so no whole numbers.

    Raises
    ------
    ValueError
        If a count is negative, `parts` is not 1 or 2, or a width is no whole number of at least 1.
    """

    rows: float
    """The number of destinations."""
    parts: int
    """Rows of the combined matrix for each destination: 2 where own row and aggregate are kept apart, else 1.
    """
    num_src: float
    """Rows that edges leave."""
    in_width: int
    out_width: int
    """`in_width` and `out_width`: values of a source row and of an output row."""
    edges: float
    """Edges of the forward section, own rows' among them."""
    own_edges: float = 0.0
    """How many of them lead from a destination's own row."""
    value_bytes: int = VALUE_BYTES
    """Bytes of a value of a source row, where the row is read from memory."""
    forward: EdgeList | None = None
    backward: EdgeList | None = None
    """`forward` and `backward`: the edges themselves, where they are known; else statistics are derived from
    the counts: edges beyond the first of a source are spread geometrically, and sources beyond the
    destinations are numbered in the order they are met."""

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
        """Of the edges from source rows to combined rows."""
        if self.forward is not None:
            return NetworkLoad.of(self.forward.to, pes, self.forward.sources)
        fresh = max(self.num_src - self.rows, 0.0)
        sampled = self.edges - self.own_edges
        # Rows that are no destination are there because an edge leads to them; all rows share the rest.
        excess = max(sampled - fresh, 0.0) / self.num_src if self.num_src else 0.0
        own = self.own_edges / self.rows if self.rows else 0.0
        degrees: dict[int, float] = {}
        for count, first in ((fresh, 1.0), (self.num_src - fresh, own)):
            for more, part in _geometric(excess).items():
                for degree, weight in (
                    (floor(first) + more, 1 - first % 1),
                    (floor(first) + 1 + more, first % 1),
                ):
                    degrees[degree] = degrees.get(degree, 0.0) + count * part * weight
        return NetworkLoad.expected(degrees, pes, bank_shares=self._bank_shares(pes))

    def backward_load(self, pes: int) -> NetworkLoad:
        """Of the edges from combined rows to source rows."""
        if self.backward is not None:
            return NetworkLoad.of(self.backward.to, pes, self.backward.sources)
        degrees: dict[int, float] = {}
        if self.parts == 2:
            degrees[1] = self.own_edges
            _add_even(degrees, self.rows, self.edges - self.own_edges)
        else:
            _add_even(degrees, self.rows, self.edges)
        fresh = max(self.num_src - self.rows, 0.0)
        return NetworkLoad.expected(
            degrees, pes, in_order=min(fresh / self.edges, 1.0) if self.edges else 0.0
        )

    def _bank_shares(self, pes: int) -> list[float] | None:
        """With two parts, even banks hold own rows and odd ones aggregates; None for equal shares."""
        if self.parts == 1 or pes % 2 or self.edges == 0:
            return None
        own = self.own_edges / self.edges
        return [own * 2 / pes, (1.0 - own) * 2 / pes] * (pes // 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskShape:
    """A task: its layers, the input's first, and the classes of its targets.

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
        """From expected sizes: each destination's own row is an edge too (a self loop, or kept apart)."""
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
    """Bytes of a value of the input rows: those of the row by its width, of which a scale is the rest."""
    return next((size for size in (4, 2) if workload.dense_row_bytes >= size * workload.features[0]), 1)


def _geometric(mean: float) -> Mapping[int, float]:
    """Probabilities of 0, 1, .. with that mean; the small tail goes to the last."""
    ratio = mean / (1.0 + mean)
    parts = {}
    left = 1.0
    for number in range(256):
        parts[number] = left * (1.0 - ratio)
        left *= ratio
        if left < 1e-4:
            break
    parts[number] += left
    return parts


def _add_even(degrees: dict[int, float], rows: float, edges: float) -> None:
    """Spread edges over rows as evenly as whole numbers allow."""
    if rows <= 0:
        return
    least = floor(edges / rows)
    more = edges - least * rows
    for degree, count in ((least, rows - more), (least + 1, more)):
        if degree > 0:
            degrees[degree] = degrees.get(degree, 0.0) + count
