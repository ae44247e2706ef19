"""Workloads: the sizes of a training step."""

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
"""Output of the load stage: gathered rows, the first layer's aggregate, the whole matrix in place, or sparse
rows."""

_ENTRY_BYTES = 8
_SPARSE_ROW_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseInput:
    """Sparse feature rows, of which only nonzero values are stored, and the first layer's products of them.

    The layer multiplies before it aggregates, which gives the same sums with one multiply-accumulate per
    stored value and product column.
    """

    row_entries: float
    """Mean number of stored values per row."""
    product_width: int
    """Columns of a source row's product, which is then aggregated."""
    own_rows: bool = False
    """Whether the destinations' own rows are also multiplied, by separate weights (GraphSAGE)."""
    width_in: float = 0.0
    """f_in of a product after the aggregation (GIN's second product); 0 if there is none."""

    @property
    def row_bytes(self) -> float:
        """Bytes of a row: a column index and a value per entry, and an offset."""
        return self.row_entries * _ENTRY_BYTES + _SPARSE_ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One trainer's mini-batch, layer by layer.

    Raises
    ------
    ValueError
        If the lengths of the lists do not match, or a size is negative.
    """

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|: input vertices first, targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|: sampled edges per layer."""
    features: tuple[int, ...]
    """f^0 .. f^L: row widths."""
    concat: bool
    """Whether a layer concatenates a vertex's own row and the aggregate, so that f_in = 2 f."""
    bytes_per_value: int = 4
    """Bytes per value, S."""
    input_bytes: float | None = None
    """Bytes of a dense input row as stored and transferred, if quantized or half-precision; None for f^0
    S."""
    edge_value_bytes: float = 0.0
    """Bytes of an edge's weight and features, which are transferred with the edge."""
    widths_in: tuple[float, ...] | None = None
    """f_in^1 .. f_in^L: multiply-accumulates of an update divided by f^l, for models that do not multiply the
    aggregate exactly once; None for f^(l-1), doubled if a layer concatenates."""
    widths_between: tuple[float, ...] | None = None
    """Width of a hidden layer inside each update, which then has two products; 0 for an update without one,
    None if no update has one."""
    weights: float | None = None
    """Number of weights, if it differs from the weights that one vertex per layer is multiplied by."""
    rows_per_edge: int = 1
    """Rows read per edge: one per head with attention, otherwise one."""
    edge_bytes: tuple[float, ...] | None = None
    """Mean bytes of a row that an edge reads, per layer, for heterogeneous graphs, whose source rows differ
    in width; None for f^(l-1) S, and for the bytes of an input row in the first layer."""
    calls: float | None = None
    """Effective number of layers for fixed costs, since heterogeneous layers call their operators once per
    relation; None for the number of layers."""
    sparse: SparseInput | None = None
    """Sparse representation of the input rows; None if the rows are dense."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """`walk_steps` and `scanned_edges`: vertices visited by the random walks of its subgraphs, with
    repetitions, and incoming edges of the subgraph's vertices, scanned to find the edges inside. 0 for
    neighbor sampling."""

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
        """Effective number of layers for fixed costs."""
        return self.layers if self.calls is None else self.calls

    @property
    def num_edges(self) -> float:
        """Sampled edges of all layers."""
        return sum(self.edges)

    @property
    def num_weights(self) -> float:
        """Sum over the layers of f_in^l f^l, including hidden layers inside updates."""
        if self.weights is not None:
            return self.weights
        return sum(self.macs(layer) for layer in range(1, self.layers + 1))

    def with_products(self, of_source: float, of_destination: float) -> Workload:
        """Return the workload with this many products per source row and per destination row."""
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
        """Return the multiply-accumulates of the update of layer `layer` (1..L) per vertex: its number of
        weights.
        """
        between = self.between(layer)
        if not between:
            return self.f_in(layer) * self.features[layer]
        return (self.f_in(layer) + self.features[layer]) * between

    def between(self, layer: int) -> float:
        """Return the width of the hidden layer inside the update of layer `layer` (1..L); 0 if there is
        none.
        """
        return 0.0 if self.widths_between is None else self.widths_between[layer - 1]

    def f_in(self, layer: int) -> float:
        """Return the input width of the product of layer `layer` (1..L): f^(l-1), doubled if it
        concatenates.
        """
        if self.widths_in is not None:
            return self.widths_in[layer - 1]
        return self.features[layer - 1] * (2 if self.concat else 1)

    @property
    def row_bytes(self) -> float:
        """Bytes of an input row as stored."""
        return self.dense_row_bytes if self.sparse is None else self.sparse.row_bytes

    @property
    def dense_row_bytes(self) -> float:
        """Bytes of a dense input row."""
        if self.input_bytes is not None:
            return self.input_bytes
        return self.features[0] * self.bytes_per_value

    def scaled(self, factor: float) -> Workload:
        """Return the workload with `factor` times as many vertices and edges."""
        return replace(
            self,
            vertices=tuple(count * factor for count in self.vertices),
            edges=tuple(count * factor for count in self.edges),
            walk_steps=self.walk_steps * factor,
            scanned_edges=self.scanned_edges * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorkload:
    """Work of one training epoch.

    Raises
    ------
    ValueError
        If a number is not above 0.
    """

    at: Callable[[float], Workload]
    """Expected workload of one trainer's mini-batch with that many targets."""
    targets_per_epoch: Count
    """Training vertices, or subgraphs per epoch if the split's units are subgraphs."""
    batch_per_trainer: Count | None = None
    """Targets per trainer in the paper's form, without re-splitting; None for an equal share of
    `batch_size`."""
    batch_size: Count
    """Targets (or subgraphs) per step, summed over all trainers."""
    sample_s: NotNegative | None = None
    """T_sample of a step with the threads used to measure it; None to derive it from the host's rate."""
    model: str = ""
    """Kind of model, to select rates measured with it."""
    best_form: LoadForm = "rows"
    """Cheapest input form for the model if a trainer accepts it; `rows` is always accepted."""
    feature_bytes: float = math.inf
    graph_bytes: float = math.inf
    """`feature_bytes` and `graph_bytes`: bytes of the whole feature matrix and topology if known, since data
    that fit in a cache load faster."""
    resident: bool = False
    """Whether every step has the same full-graph mini-batch, which stays on its trainer: it is sampled,
    loaded and transferred only once."""
    learned_bytes: float = 0.0
    """Bytes of the learned embeddings, with their optimizer state."""
    transpose_bytes: float = 0.0
    """Bytes of the edges sorted by source, if they are stored next to the topology for the whole run."""
    targets: Count | None = None
    """Number of training vertices, if a unit is the full graph instead of a vertex."""
    target_edges: NotNegative | None = None
    """Number of edges into the training vertices, if known."""
    # A `DegreeDistribution`; not imported here, because its module imports numpy and settings must load
    # without it.
    degrees: Any = None
    """Degree distribution of the full graph, if it was counted."""
    # `GridSizes` also has a module that imports numpy.
    chunk_counts: Callable[[int], tuple[Any, Any]] | None = None
    """Function that counts the full graph's chunks for a number of intervals, and the chunks of the edges
    into the targets; None if the graph is not open."""
    kept_part: NotNegative = 0.0
    """Fraction of all feature rows that each accelerator caches for the whole run."""
    hit_rate: Callable[[float], float] | None = None
    """Cache hit rate as a function of the fraction of rows cached, most frequently read rows first; None if
    unknown."""
    whole: Callable[[float, int], WholeGraphStep] | None = None
    """CPU trainer's full-graph step for a number of bytes of host memory and a number of threads; None if the
    model has no special full-graph step."""

    def __post_init__(self) -> None:
        check_numbers("workload", self)

    @property
    def sent_part(self) -> float:
        """Fraction of the rows an accelerator reads that must be transferred: its cache misses."""
        return 1.0 if self.hit_rate is None or not self.kept_part else 1.0 - self.hit_rate(self.kept_part)

    def with_rows_of(self, row_bytes: float) -> TrainingWorkload:
        """Return the same work on dense feature rows of `row_bytes` bytes each."""
        at, before = self.at, self.at(1.0).dense_row_bytes

        @cache
        def requantized(targets: float) -> Workload:
            return replace(at(targets), input_bytes=row_bytes)

        return replace(self, at=requantized, feature_bytes=self.feature_bytes * row_bytes / before)

    def remembered(self) -> TrainingWorkload:
        """Return the same work with its sizes cached per number of targets."""
        return replace(self, at=cache(self.at))


def in_proportion(workload: Workload, targets: float) -> Callable[[float], Workload]:
    """Return a function that scales one mini-batch's sizes in proportion to the number of targets."""
    check_kind("workload", workload, Workload, "give a Workload")
    check_size("the number of targets", targets)
    if not targets:
        raise ValueError("the number of targets is 0: give a number above 0")
    return lambda wanted: workload.scaled(wanted / targets)
