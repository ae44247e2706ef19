"""Sizes of a training step for mini-batches, full-graph steps and chunks, and workload files."""

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
    """Rows that one pass of one layer reads along edges."""

    kind: GatherKind
    """Kind of gather: sum (also mean and GCN normalization), attention, maximum, or compiled edge loops."""
    is_backward: bool
    """Whether gradients are propagated back to the sources."""
    rows: float
    """Number of rows read: one per contributing edge, and one per vertex if vertices read self rows."""
    width: int
    sources: float
    """Number of distinct rows that may be read."""
    masked_heads: int = 0
    """Number of attention heads with dropout, for which a mask is generated per edge and head."""
    num_skipped: float = 0.0
    """Number of edges that are inspected but do not read a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphStep:
    """Work and memory requirements of a full-graph step."""

    arrays: Mapping[str, float]
    """Size of each array in bytes, by display name."""
    reads: tuple[EdgeReads, ...]
    """All gathers, forward and backward."""
    calls: float
    """Number of chunks of rows that are computed, counted once per pass."""
    macs: float
    """Number of multiply-accumulates in all row-wise passes."""
    values: float
    """Number of values that all row-wise passes read and write."""
    sparse_macs: float = 0.0
    """Number of multiply-accumulates in products of sparse rows."""
    sparse_weights: float = 0.0
    """Number of weights that products of sparse rows read, counted once per product."""
    matrices: Mapping[str, float] = field(default_factory=dict)
    """Part of `arrays` that is stored in a file if it exceeds the host memory budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherLayer:
    """Layer that gathers rows and multiplies the result."""

    gather_width: int
    """Number of columns of the rows that are read along edges."""
    out_width: int
    """Number of columns of the result."""
    has_input_grad: bool = True
    """Whether gradients are propagated along edges, which is not the case if the layer gathers features."""
    is_cached: bool = False
    """Whether the gathered result is cached on the host for all epochs, as for features without dropout."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Input and output columns of each product; by default one product, `gather_width` to `out_width`."""
    reads_self: bool = False
    """Whether vertices also read self rows."""
    scales_sources: bool = False
    """Whether rows are scaled by a factor of their source. Gradients are always scaled by destination."""
    has_dropout: bool = False
    has_source_dropout: bool = False
    """Whether dropout is applied to source rows whenever these are uploaded."""

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Input and output columns of each product."""
        return self.shapes or ((self.gather_width, self.out_width),)

    @property
    def sum_width(self) -> int:
        """Number of columns of a gathered result, which is wider than a row if a self row is concatenated."""
        return self.products[0][0]

    @property
    def weights(self) -> int:
        """Number of weights, which is also the number of multiply-accumulates per row in the forward pass."""
        return sum(taken * made for taken, made in self.products)

    def backward_macs(self, *, needs_input_grad: bool) -> int:
        """Return the multiply-accumulates per row of the backward pass.

        They compute the weight gradients and the gradient of each product's input, for the first product only
        if `needs_input_grad`.
        """
        first, *others = (taken * made for taken, made in self.products)
        return self.weights + sum(others) + first * needs_input_grad

    @property
    def num_results(self) -> int:
        """Number of result values of all products per row."""
        return sum(made for _, made in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkShape:
    """Sizes of a chunk, which contains the edges between two intervals."""

    edges: float
    """Number of edges, each of which reads one row."""
    rows: float
    """Number of destination rows with at least one edge."""
    width: int
    read_rows: float
    """Number of rows of the source interval."""
    scaled: bool = False


LoadForm = Literal["rows", "aggregated", "in_place", "sparse"]
"""Output of the load stage: gathered rows, aggregates of layer 1, the matrix in place, or sparse rows."""

_ENTRY_BYTES = 8
_SPARSE_ROW_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseInput:
    """Sparse feature rows, which store only nonzero values, and the first layer's products of these rows.

    The layer multiplies before it aggregates, which yields the same sums with one multiply-accumulate per
    stored value and product column.
    """

    row_entries: float
    """Mean number of stored values per row."""
    product_width: int
    """Number of columns of a source row's product, which is then aggregated."""
    has_self_rows: bool = False
    """Whether self rows are multiplied too, by separate weights (GraphSAGE)."""
    width_in: float = 0.0
    """Input width f_in of a product after the aggregation (GIN's second product), or 0 if there is none."""

    @property
    def row_bytes(self) -> float:
        """Number of bytes of a row: a column index and a value per entry, and an offset."""
        return self.row_entries * _ENTRY_BYTES + _SPARSE_ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One trainer's mini-batch, layer by layer."""

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|: numbers of vertices, input vertices first, targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|: numbers of sampled edges in each layer."""
    features: tuple[int, ...]
    """f^0 .. f^L: row widths."""
    concat: bool
    """Whether a layer concatenates the self row and the aggregate, so that f_in = 2 f."""
    bytes_per_value: int = 4
    """Number of bytes per value, S."""
    input_bytes: float | None = None
    """Stored bytes of a dense input row if it is quantized or half-precision; None for f^0 S."""
    edge_value_bytes: float = 0.0
    """Number of bytes of an edge's weight and features, which are transferred with the edge."""
    widths_in: tuple[float, ...] | None = None
    """f_in^1 .. f_in^L: multiply-accumulates of an update divided by f^l, for models that do not multiply the
    aggregate exactly once; None for f^(l-1), doubled if a layer concatenates.
    """
    hidden_widths: tuple[float, ...] | None = None
    """Width of a hidden layer inside each update, which then has two products; 0 for an update without one,
    None if no update has one."""
    weights: float | None = None
    """Number of weights, if it is not the number of weights by which one vertex per layer is multiplied."""
    rows_per_edge: int = 1
    """Number of rows read per edge: one per head with attention, otherwise one."""
    edge_bytes: tuple[float, ...] | None = None
    """Mean bytes of a row that an edge reads in each layer of a heterogeneous graph, whose source rows differ
    in width; None for f^(l-1) S, or in the first layer the bytes of an input row."""
    calls: float | None = None
    """Effective number of layers for fixed costs, as heterogeneous layers call operators per relation."""
    sparse: SparseInput | None = None
    """Sparse representation of the input rows; None if the rows are dense."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """Number of in-edges of subgraph vertices, which are scanned to find the edges inside. `walk_steps` is
    the number of vertices that random walks visit, with repetitions. Both are 0 for neighbor sampling."""

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
        """Effective number of layers that determines fixed costs."""
        return self.layers if self.calls is None else self.calls

    @property
    def num_edges(self) -> float:
        """Number of sampled edges in all layers."""
        return sum(self.edges)

    @property
    def num_weights(self) -> float:
        """Sum over the layers of f_in^l f^l, including hidden layers inside updates."""
        if self.weights is not None:
            return self.weights
        return sum(self.macs(layer) for layer in range(1, self.layers + 1))

    def with_products(self, source_products: float, destination_products: float) -> Workload:
        """Return the workload with these numbers of products per source row and per destination row."""
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
        """Return the width of the hidden layer inside layer `layer`'s update (1..L), or 0 without one."""
        return 0.0 if self.hidden_widths is None else self.hidden_widths[layer - 1]

    def f_in(self, layer: int) -> float:
        """Return the product's input width in layer `layer` (1..L): f^(l-1), doubled by concatenation."""
        if self.widths_in is not None:
            return self.widths_in[layer - 1]
        return self.features[layer - 1] * (2 if self.concat else 1)

    @property
    def row_bytes(self) -> float:
        """Number of stored bytes of an input row."""
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
    """Function that returns the expected workload of a mini-batch with a number of targets."""
    targets_per_epoch: Count
    """Number of training vertices, or of subgraphs per epoch if the units of the split are subgraphs."""
    batch_per_trainer: Count | None = None
    """Targets per trainer in the paper's form, which does not redistribute targets; None for equal shares."""
    batch_size: Count
    """Number of targets (or subgraphs) per step over all trainers."""
    sample_s: NonNegative | None = None
    """Measured T_sample of a step, with the threads of the measurement; None to use the host's rate."""
    model: str = ""
    """Kind of model, which selects the rates that were measured with it."""
    best_form: LoadForm = "rows"
    """Cheapest input form for the model, for trainers that accept it; `rows` is always accepted."""
    feature_bytes: float = math.inf
    graph_bytes: float = math.inf
    """Size of the topology in bytes if known, like `feature_bytes`. Data that fit in a cache load faster."""
    resident: bool = False
    """Whether all steps have the same full-graph mini-batch, which is loaded and transferred only once."""
    learned_bytes: float = 0.0
    """Size of the learned embeddings and their optimizer state in bytes."""
    transpose_bytes: float = 0.0
    """Size of the edges by source in bytes, if these are stored in addition to the topology."""
    targets: Count | None = None
    """Number of training vertices if the unit is the full graph instead of a vertex."""
    target_edges: NonNegative | None = None
    # The type is Any because the module of `DegreeDistribution` imports numpy, which settings do not load.
    degrees: Any = None
    """Degree distribution of the full graph, if it was counted."""
    # The type is Any because the module of `GridSizes` imports numpy too.
    chunk_counts: Callable[[int], tuple[Any, Any]] | None = None
    """Function that counts the chunks of all edges and those of the edges into targets for a number of
    intervals; None if the graph is not open."""
    cached_fraction: NonNegative = 0.0
    """Fraction of all feature rows that each accelerator caches for the whole run."""
    hit_rate: Callable[[float], float] | None = None
    """Cache hit rate for a cached fraction of the most frequently read rows; None if unknown."""
    full_graph_step: Callable[[float, int], FullGraphStep] | None = None
    """Function that returns the CPU trainer's full-graph step for bytes of host memory and a number of
    threads; None if the model has no special full-graph step."""

    def __post_init__(self) -> None:
        check_numbers("workload", self)

    @property
    def miss_fraction(self) -> float:
        """Fraction of an accelerator's rows that must be transferred because its cache misses."""
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
        """Return the same work with a cache of the sizes for each number of targets."""
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
    """Keys of a workload file and their types."""

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

    The sizes in the file are those of one trainer's mini-batch with `batch_per_trainer` targets. They are
    scaled in proportion for other numbers of targets. The last entry of `vertices` may differ from
    `batch_per_trainer`, for example if sizes are means that include the smaller last mini-batch of an epoch:
    it is the number of vertices that the last layer computes, while the epoch is divided by
    `batch_per_trainer`. `batch_size` is set to `batch_per_trainer`, which the caller multiplies by the number
    of trainers.

    Parameters
    ----------
    path
        YAML file with `vertices` [V0 .. VL], `edges` [E1 .. EL], `features` [f0 .. fL], `concat`,
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
