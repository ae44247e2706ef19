"""The sizes a training step has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from hyrt_perfmodel.checks import Count, NotNegative, check_kind, check_numbers, check_size, check_sizes
from hyrt_perfmodel.workloads.whole_graph import WholeGraphStep

LoadForm = Literal["rows", "aggregated", "in_place", "sparse"]
"""What the load stage hands on: gathered rows, their first aggregate, the whole matrix where it lies, or rows
that stay sparse."""

_ENTRY_BYTES = 8
_SPARSE_ROW_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseInput:
    """Feature rows of which only the values that are not 0 are stored, and what a first layer does to them.

    It multiplies them before it aggregates: the same sums, for one multiply-accumulate a stored value and
    column of the product.
    """

    row_entries: float
    """Mean number of stored values of a row."""
    product_width: int
    """Columns of a source row's product, which is what is aggregated."""
    own_rows: bool = False
    """Whether the destinations' own rows are multiplied too, by weights of their own (GraphSAGE)."""
    width_in: float = 0.0
    """f_in of what the layer multiplies after the aggregation (GIN's second product), else 0."""

    @property
    def row_bytes(self) -> float:
        """Bytes of a row: a column number and a value for each entry, and an offset."""
        return self.row_entries * _ENTRY_BYTES + _SPARSE_ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One trainer's mini-batch, layer by layer.

    Raises
    ------
    ValueError
        If the lists' lengths do not belong together, or a size is negative.
    """

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|, the input vertices first and the targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|, sampled edges of each layer."""
    features: tuple[int, ...]
    """f^0 .. f^L, widths of the rows."""
    concat: bool
    """Whether a layer concatenates the own row and the aggregate, so that its f_in is 2 f."""
    bytes_per_value: int = 4
    """The bytes of a value, S."""
    input_bytes: float | None = None
    """The bytes of a dense input row in a narrow format, in which it is read and travels; None for f^0 S."""
    edge_value_bytes: float = 0.0
    """The bytes of an edge's weight and features, which travel with its source."""
    widths_in: tuple[float, ...] | None = None
    """f_in^1 .. f_in^L, the multiply-accumulates of an update over f^l, of models that do not multiply once
    by the aggregate; None for f^(l-1), twice that where a layer concatenates."""
    widths_between: tuple[float, ...] | None = None
    """The width of a hidden layer inside each update, which is then two products, or 0 where there is none;
    None for no such layer."""
    weights: float | None = None
    """The number of weights, where they are not those that a vertex of each layer is multiplied with."""
    rows_per_edge: int = 1
    """Rows that an edge reads: one a head with attention, else one."""
    edge_bytes: tuple[float, ...] | None = None
    """Mean bytes of a row that an edge of each layer reads, of a typed graph, whose sources have rows of
    several widths; None for f^(l-1) S, and in the first layer for those of an input row."""
    calls: float | None = None
    """What stands for the number of layers where fixed costs are counted: in a typed graph, a layer calls its
    operators for each relation. None for that number."""
    sparse: SparseInput | None = None
    """What stands for the input's rows where they are stored sparse; None for dense ones."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """`walk_steps` and `scanned_edges`: vertices that the random walks of its subgraphs meet, with repeats,
    and edges that enter them, among which those inside are looked for. 0 where neighbours are drawn."""

    def __post_init__(self) -> None:
        check_sizes("workload: edges", self.edges)
        layers = len(self.edges)
        reason = f"edges has {layers}"
        for name, values in (("vertices", self.vertices), ("features", self.features)):
            check_sizes(f"workload: {name}", values, layers + 1, reason)
        for name in ("widths_in", "widths_between", "edge_bytes"):
            if getattr(self, name) is not None:
                check_sizes(f"workload: {name}", getattr(self, name), layers, reason)
        check_size("workload: bytes_per_value", self.bytes_per_value)
        if self.input_bytes is not None:
            check_size("workload: input_bytes", self.input_bytes)

    @property
    def layers(self) -> int:
        return len(self.edges)

    @property
    def launched(self) -> float:
        """How many layers count where fixed costs do."""
        return self.layers if self.calls is None else self.calls

    @property
    def num_edges(self) -> float:
        """Sampled edges of all layers."""
        return sum(self.edges)

    @property
    def num_weights(self) -> float:
        """Sum over the layers of f_in^l f^l, by way of a hidden layer where an update has one."""
        if self.weights is not None:
            return self.weights
        return sum(self.macs(layer) for layer in range(1, self.layers + 1))

    def with_products(self, of_source: float, of_destination: float) -> Workload:
        """The same where a layer multiplies each source's row and each destination's so many times."""
        pairs = list(itertools.pairwise(self.features))
        sources = [above / max(below, 1e-30) for above, below in itertools.pairwise(self.vertices)]
        return replace(
            self,
            widths_in=tuple(
                width * (of_destination + of_source * ratio)
                for (width, _), ratio in zip(pairs, sources, strict=True)
            ),
            weights=sum((of_source + of_destination) * width * into for width, into in pairs),
        )

    def macs(self, layer: int) -> float:
        """Multiply-accumulates of the update of layer `layer` (1..L) for one vertex, and its weights."""
        between = self.between(layer)
        if not between:
            return self.f_in(layer) * self.features[layer]
        return (self.f_in(layer) + self.features[layer]) * between

    def between(self, layer: int) -> float:
        """Width of the hidden layer inside the update of layer `layer` (1..L); 0 where there is none."""
        return 0.0 if self.widths_between is None else self.widths_between[layer - 1]

    def f_in(self, layer: int) -> float:
        """Width of what layer `layer` (1..L) multiplies: f^(l-1), twice that where it concatenates."""
        if self.widths_in is not None:
            return self.widths_in[layer - 1]
        return self.features[layer - 1] * (2 if self.concat else 1)

    @property
    def row_bytes(self) -> float:
        """Bytes of an input row as it is stored."""
        return self.dense_row_bytes if self.sparse is None else self.sparse.row_bytes

    @property
    def dense_row_bytes(self) -> float:
        """Bytes of an input row that is dense."""
        if self.input_bytes is not None:
            return self.input_bytes
        return self.features[0] * self.bytes_per_value

    def scaled(self, factor: float) -> Workload:
        """The same with `factor` times as many vertices and edges."""
        return replace(
            self,
            vertices=tuple(count * factor for count in self.vertices),
            edges=tuple(count * factor for count in self.edges),
            walk_steps=self.walk_steps * factor,
            scanned_edges=self.scanned_edges * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorkload:
    """What an epoch of training asks of a platform.

    Raises
    ------
    ValueError
        If a number is not above 0.
    """

    at: Callable[[float], Workload]
    """The expected workload of one trainer's mini-batch with that many targets."""
    targets_per_epoch: Count
    """Training vertices; subgraphs of an epoch where the units of the split are subgraphs."""
    batch_per_trainer: Count | None = None
    """What each trainer takes in the paper's form, where nothing is re-split; None for an equal part of
    `batch_size`."""
    batch_size: Count
    """Targets (or subgraphs) of a step, summed over all trainers."""
    sample_s: NotNegative | None = None
    """T_sample of a step with the threads it was measured with; None where it follows from the host's rate.
    """
    model: str = ""
    """Kind of model, for the rates that were measured with it."""
    best_form: LoadForm = "rows"
    """The form of input that costs the model least, where a trainer takes it; `rows` it always takes."""
    feature_bytes: float = math.inf
    graph_bytes: float = math.inf
    """`feature_bytes` and `graph_bytes`: bytes of the whole feature matrix and topology, where known: what
    lies in a cache loads faster."""
    resident: bool = False
    """Whether every step has the same mini-batch, of the whole graph, which stays where it is trained:
    nothing is sampled, loaded or transferred but once."""
    learned_bytes: float = 0.0
    """Bytes of the rows that are learned, with what the optimiser keeps of them."""
    transpose_bytes: float = 0.0
    """Bytes of the edges by source, where they are kept beside the topology for the whole run."""
    targets: Count | None = None
    """The training vertices, where a unit is not one of them but the whole graph."""
    target_edges: NotNegative | None = None
    """Edges into them, where they are known."""
    # A `DegreeDistribution`, whose module brings numpy: settings are read without it.
    degrees: Any = None
    """How many edges the vertices of the whole graph have, where they were counted."""
    # Of `GridSizes`, whose module brings numpy, too.
    chunk_counts: Callable[[int], tuple[Any, Any]] | None = None
    """Counts the chunks of the whole graph in so many intervals, and those of the edges into the targets;
    None where the graph is not open."""
    kept_part: NotNegative = 0.0
    """The part of all feature rows that each accelerator keeps for the whole run."""
    hit_rate: Callable[[float], float] | None = None
    """Which part of the rows that a trainer reads are among a part of all rows, those that are read most;
    None where that is not known."""
    whole: Callable[[float, int], WholeGraphStep] | None = None
    """Of training on the whole graph: the step that the CPU trainer makes with so many bytes of host memory
    and threads; None where it has no special one for the model."""

    def __post_init__(self) -> None:
        check_numbers("workload", self)

    @property
    def sent_part(self) -> float:
        """Which part of the rows that an accelerator reads it is sent: those that it does not keep."""
        return 1.0 if self.hit_rate is None or not self.kept_part else 1.0 - self.hit_rate(self.kept_part)

    def with_rows_of(self, row_bytes: float) -> TrainingWorkload:
        """The same work on dense feature rows of another format, of so many bytes each."""
        at, before = self.at, self.at(1.0).dense_row_bytes

        @cache
        def narrower(targets: float) -> Workload:
            return replace(at(targets), input_bytes=row_bytes)

        return replace(self, at=narrower, feature_bytes=self.feature_bytes * row_bytes / before)

    def remembered(self) -> TrainingWorkload:
        """The same work, whose sizes are worked out once for each number of targets."""
        return replace(self, at=cache(self.at))


def in_proportion(workload: Workload, targets: float) -> Callable[[float], Workload]:
    """Sizes that grow in proportion to the targets, from those of one mini-batch."""
    check_kind("workload", workload, Workload, "give a Workload")
    check_size("the number of targets", targets)
    if not targets:
        raise ValueError("the number of targets is 0: give a number above 0")
    return lambda wanted: workload.scaled(wanted / targets)
