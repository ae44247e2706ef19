"""Sizes of a training step, for mini-batches, full-graph steps and chunks, and files that specify them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hyrt_perfmodel.validation import (
    Count,
    NonNegative,
    Number,
    StrictBool,
    WholeNumber,
    build_dataclass,
    check_kind,
    check_numbers,
    check_size,
    check_sizes,
    read_yaml,
)

GatherKind = Literal["sum", "attention", "max", "loops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReads:
    """Rows that one direction of one layer reads along edges."""

    kind: GatherKind
    """Sum (including mean and GCN normalization), attention-weighted sum, maximum, or compiled edge loops."""
    is_backward: bool
    """Whether gradients are propagated back to the sources."""
    rows: float
    """Number of rows read: one per contributing edge, and one per vertex if vertices read their own rows."""
    width: int
    sources: float
    """Number of distinct rows that may be read."""
    masked_heads: int = 0
    """Attention heads with dropout, for which a mask is generated per edge and head."""
    num_skipped: float = 0.0
    """Edges that are inspected but lead to no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphStep:
    """Work and memory requirements of a full-graph step."""

    arrays: Mapping[str, float]
    """Bytes per array, by display name."""
    reads: tuple[EdgeReads, ...]
    """All gathers, forward and backward."""
    calls: float
    """Chunks of rows that are computed, counted once per pass."""
    macs: float
    """Multiply-accumulates of all row-wise passes."""
    values: float
    """Values that all row-wise passes read and write."""
    sparse_macs: float = 0.0
    """Multiply-accumulates of products of sparse rows."""
    sparse_weights: float = 0.0
    """Weights that products of sparse rows read, counted once per product."""
    matrices: Mapping[str, float] = field(default_factory=dict)
    """The subset of `arrays` that is stored in a file if it exceeds the host memory budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherLayer:
    """One layer that gathers rows and multiplies the gathered result."""

    gather_width: int
    """Columns of the rows that are read along edges."""
    out_width: int
    """Columns of the result."""
    has_input_grad: bool = True
    """Whether gradients are propagated along the edges; False for a layer that gathers the raw features."""
    is_cached: bool = False
    """Whether the gathered result is cached on the host across epochs: for features without dropout."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Input and output columns of its products; by default one of `gather_width` and `out_width` columns."""
    reads_self: bool = False
    """Whether vertices also read their own rows."""
    scales_sources: bool = False
    """Whether rows are scaled by a factor of their source; gradients are always scaled by destination."""
    has_dropout: bool = False
    has_source_dropout: bool = False
    """Whether dropout is applied to source rows, each time they are uploaded."""

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Input and output columns of each product."""
        return self.shapes or ((self.gather_width, self.out_width),)

    @property
    def sum_width(self) -> int:
        """Columns of a vertex's gathered result: more than a row's if its own row is concatenated."""
        return self.products[0][0]

    @property
    def weights(self) -> int:
        """Number of weights, which is also the multiply-accumulates per row of the forward pass."""
        return sum(taken * made for taken, made in self.products)

    def backward_macs(self, *, needs_input_grad: bool) -> int:
        """Return the multiply-accumulates per row of the backward pass.

        These are for the weight gradients and for the gradient of each product's input, the first product's
        only if `needs_input_grad`.
        """
        first, *others = (taken * made for taken, made in self.products)
        return self.weights + sum(others) + first * needs_input_grad

    @property
    def num_results(self) -> int:
        """Result values of all products per row."""
        return sum(made for _, made in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkShape:
    """Rows gathered along the edges between two intervals."""

    edges: float
    """Edges, each of which reads one row."""
    rows: float
    """Destination rows with at least one edge."""
    width: int
    read_rows: float
    """Rows of the source interval."""
    scaled: bool = False


LoadForm = Literal["rows", "aggregated", "in_place", "sparse"]
"""Output of the load stage: gathered rows, first-layer aggregates, the matrix in place, or sparse rows."""

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
    has_self_rows: bool = False
    """Whether the destinations' own rows are also multiplied, by separate weights (GraphSAGE)."""
    width_in: float = 0.0
    """f_in of a product after the aggregation (GIN's second product); 0 if there is none."""

    @property
    def row_bytes(self) -> float:
        """Bytes of a row: a column index and a value per entry, and an offset."""
        return self.row_entries * _ENTRY_BYTES + _SPARSE_ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One trainer's mini-batch, layer by layer."""

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|: input vertices first, targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|: sampled edges per layer."""
    features: tuple[int, ...]
    """f^0 .. f^L: row widths."""
    concat: bool
    """Whether a layer concatenates a vertex's own row and the aggregate, so that f_in = 2 f."""
    bytes_per_value: int = 4
    """S, the bytes per value."""
    input_bytes: float | None = None
    """Stored bytes of a dense input row, if quantized or half-precision; None for f^0 S."""
    edge_value_bytes: float = 0.0
    """Bytes of an edge's weight and features, which are transferred with the edge."""
    widths_in: tuple[float, ...] | None = None
    """f_in^1 .. f_in^L: multiply-accumulates of an update divided by f^l, for models that do not multiply the
    aggregate exactly once; None for f^(l-1), doubled if a layer concatenates.
    """
    hidden_widths: tuple[float, ...] | None = None
    """Width of a hidden layer inside each update, which then has two products; 0 for an update without one,
    None if no update has one."""
    weights: float | None = None
    """Number of weights, if it differs from the weights that one vertex per layer is multiplied by."""
    rows_per_edge: int = 1
    """Rows read per edge: one per head with attention, otherwise one."""
    edge_bytes: tuple[float, ...] | None = None
    """Mean bytes of a row that an edge reads, per layer, for heterogeneous graphs, whose source rows differ
    in width; None for f^(l-1) S, and for the bytes of an input row in the first layer.
    """
    calls: float | None = None
    """Effective number of layers for fixed costs: heterogeneous layers call operators per relation."""
    sparse: SparseInput | None = None
    """Sparse representation of the input rows; None if the rows are dense."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """Incoming edges of subgraph vertices, scanned to find the edges inside; `walk_steps` counts vertices
    visited by random walks, with repetitions. Both are 0 for neighbor sampling.
    """

    def __post_init__(self) -> None:
        check_sizes("workload: edges", self.edges)
        layers = len(self.edges)
        reason = f"edges has {layers}"
        for name, values in (("vertices", self.vertices), ("features", self.features)):
            check_sizes(f"workload: {name}", values, layers + 1, reason)
        for name in ("widths_in", "hidden_widths", "edge_bytes"):
            if getattr(self, name) is not None:
                check_sizes(f"workload: {name}", getattr(self, name), layers, reason)
        check_size("workload: bytes_per_value", self.bytes_per_value)
        if self.input_bytes is not None:
            check_size("workload: input_bytes", self.input_bytes)

    @property
    def layers(self) -> int:
        return len(self.edges)

    @property
    def effective_layers(self) -> float:
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

    def with_products(self, source_products: float, destination_products: float) -> Workload:
        """Return the workload with this many products per source row and per destination row."""
        pairs = list(itertools.pairwise(self.features))
        sources = [above / max(below, 1e-30) for above, below in itertools.pairwise(self.vertices)]
        return replace(
            self,
            widths_in=tuple(
                width * (destination_products + source_products * ratio)
                for (width, _), ratio in zip(pairs, sources, strict=True)
            ),
            weights=sum((source_products + destination_products) * width * into for width, into in pairs),
        )

    def macs(self, layer: int) -> float:
        """Return the multiply-accumulates per vertex, or weights, of the update of layer `layer` (1..L)."""
        between = self.hidden_width(layer)
        if not between:
            return self.f_in(layer) * self.features[layer]
        return (self.f_in(layer) + self.features[layer]) * between

    def hidden_width(self, layer: int) -> float:
        """Return the width of the hidden layer inside the update of layer `layer` (1..L); 0 without one."""
        return 0.0 if self.hidden_widths is None else self.hidden_widths[layer - 1]

    def f_in(self, layer: int) -> float:
        """Return the product's input width in layer `layer` (1..L): f^(l-1), doubled by concatenation."""
        if self.widths_in is not None:
            return self.widths_in[layer - 1]
        return self.features[layer - 1] * (2 if self.concat else 1)

    @property
    def row_bytes(self) -> float:
        """Bytes of an input row as stored."""
        return self.dense_row_bytes if self.sparse is None else self.sparse.row_bytes

    @property
    def dense_row_bytes(self) -> float:
        if self.input_bytes is not None:
            return self.input_bytes
        return self.features[0] * self.bytes_per_value

    def scaled(self, factor: float) -> Workload:
        return replace(
            self,
            vertices=tuple(count * factor for count in self.vertices),
            edges=tuple(count * factor for count in self.edges),
            walk_steps=self.walk_steps * factor,
            scanned_edges=self.scanned_edges * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorkload:
    """Work of one training epoch."""

    at: Callable[[float], Workload]
    """Expected workload of one trainer's mini-batch with that many targets."""
    targets_per_epoch: Count
    """Training vertices, or subgraphs per epoch if the split's units are subgraphs."""
    batch_per_trainer: Count | None = None
    """Targets per trainer in the paper's form, without re-splitting; None for equal shares."""
    batch_size: Count
    """Targets (or subgraphs) per step, summed over all trainers."""
    sample_s: NonNegative | None = None
    """T_sample of a step with the threads used to measure it; None to derive it from the host's rate."""
    model: str = ""
    """Kind of model, to select rates measured with it."""
    best_form: LoadForm = "rows"
    """Cheapest input form for the model if a trainer accepts it; `rows` is always accepted."""
    feature_bytes: float = math.inf
    graph_bytes: float = math.inf
    """Bytes of the topology if known, like `feature_bytes`; data that fit in a cache load faster."""
    resident: bool = False
    """Whether every step has the same full-graph mini-batch, which is loaded and transferred only once."""
    learned_bytes: float = 0.0
    """Bytes of the learned embeddings, with their optimizer state."""
    transpose_bytes: float = 0.0
    """Bytes of the edges sorted by source, if they are stored next to the topology for the whole run."""
    targets: Count | None = None
    """Number of training vertices, if a unit is the full graph instead of a vertex."""
    target_edges: NonNegative | None = None
    # A `DegreeDistribution`, whose module imports numpy; settings must load without it.
    degrees: Any = None
    """Degree distribution of the full graph, if it was counted."""
    # The module of `GridSizes` also imports numpy.
    chunk_counts: Callable[[int], tuple[Any, Any]] | None = None
    """Function that counts the full graph's chunks for a number of intervals, and the chunks of the edges
    into the targets; None if the graph is not open.
    """
    cached_fraction: NonNegative = 0.0
    """Fraction of all feature rows that each accelerator caches for the whole run."""
    hit_rate: Callable[[float], float] | None = None
    """Cache hit rate by cached fraction of rows, most frequently read rows first; None if unknown."""
    full_graph_step: Callable[[float, int], FullGraphStep] | None = None
    """CPU trainer's full-graph step for a number of bytes of host memory and a number of threads; None if the
    model has no special full-graph step.
    """

    def __post_init__(self) -> None:
        check_numbers("workload", self)

    @property
    def miss_fraction(self) -> float:
        """Fraction of the rows an accelerator reads that must be transferred: its cache misses."""
        return (
            1.0
            if self.hit_rate is None or not self.cached_fraction
            else 1.0 - self.hit_rate(self.cached_fraction)
        )

    def with_row_bytes(self, row_bytes: float) -> TrainingWorkload:
        """Return the same work on dense feature rows of `row_bytes` bytes each."""
        at, before = self.at, self.at(1.0).dense_row_bytes

        @cache
        def requantized(targets: float) -> Workload:
            return replace(at(targets), input_bytes=row_bytes)

        return replace(self, at=requantized, feature_bytes=self.feature_bytes * row_bytes / before)

    def with_cached_sizes(self) -> TrainingWorkload:
        """Return the same work with its sizes cached per number of targets."""
        return replace(self, at=cache(self.at))


def proportional_workload(workload: Workload, targets: float) -> Callable[[float], Workload]:
    """Return a function that scales one mini-batch's sizes in proportion to the number of targets."""
    check_kind("workload", workload, Workload, "pass a Workload")
    check_size("the number of targets", targets)
    if not targets:
        raise ValueError("the number of targets must be above 0, got 0")
    return lambda num_targets: workload.scaled(num_targets / targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """Keys of a workload file."""

    vertices: tuple[Number, ...]
    edges: tuple[Number, ...]
    features: tuple[WholeNumber, ...]
    concat: StrictBool
    bytes_per_value: WholeNumber = 4
    targets_per_epoch: WholeNumber
    batch_per_trainer: WholeNumber
    sample_s: Number | None = None


def load_workload(path: str | Path) -> TrainingWorkload:
    """Read a workload file.

    Its sizes are those of one trainer's mini-batch with `batch_per_trainer` targets and are scaled in
    proportion for other numbers of targets. The last entry of `vertices` may differ from `batch_per_trainer`,
    for example if sizes are means over mini-batches of which the last of an epoch is smaller: the last layer
    computes that many vertices, and the epoch is divided by `batch_per_trainer`. `batch_size` is set to
    `batch_per_trainer`; the caller multiplies it by the platform's trainers.

    Parameters
    ----------
    path
        A file with `vertices` [V0 .. VL], `edges` [E1 .. EL], `features` [f0 .. fL], `concat`,
        `bytes_per_value`, `targets_per_epoch`, `batch_per_trainer` and `sample_s`.

    Raises
    ------
    ValueError
        If a key is missing or unknown, a value is not a number, or the lengths of the lists do not match.
    """
    location = str(path)
    content = build_dataclass(_Content, read_yaml(Path(path)), location)
    try:
        if not content.edges:
            raise ValueError("edges is empty: add one number per layer")
        if content.batch_per_trainer < 1:
            raise ValueError(f"batch_per_trainer must be at least 1, got {content.batch_per_trainer}")
        if min([content.bytes_per_value, *content.features]) < 1:
            raise ValueError("bytes_per_value and features must be at least 1")
        work = Workload(
            vertices=content.vertices,
            edges=content.edges,
            features=content.features,
            concat=content.concat,
            bytes_per_value=content.bytes_per_value,
        )
        if 0 in content.vertices:
            raise ValueError("vertices must be above 0, because every mini-batch has targets")
        return TrainingWorkload(
            at=proportional_workload(work, content.batch_per_trainer),
            targets_per_epoch=content.targets_per_epoch,
            batch_size=content.batch_per_trainer,
            batch_per_trainer=content.batch_per_trainer,
            sample_s=content.sample_s or 0.0,
        )
    except ValueError as problem:
        raise ValueError(f"{location}: {problem}") from problem
