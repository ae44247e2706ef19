"""Measured costs of the host: tables for sampling and loading, and rates of full-graph steps and chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hyrt_perfmodel.validation import Count, NonNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.workload import ChunkShape, EdgeReads, FullGraphStep, GatherKind, GatherLayer, LoadForm

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """Cost of loading random rows of a matrix with a number of threads."""

    form: LoadForm
    """Input form: `rows` (copied), `aggregated` (summed), or `sparse` (copied without zeros)."""
    model: str = ""
    """Kind of model for whose aggregation this is the cost, which depends on edge weights; empty for rows."""
    matrix_bytes: Positive
    """Size of the feature matrix in bytes. Matrices that fit in a cache are read faster."""
    threads: Count
    row_s: NonNegative
    """Cost per row, independent of the width."""
    gb_s: Positive
    """Bandwidth of rows in 1e9 bytes per second."""
    launch_s: NonNegative = 0.0
    """Fixed cost per mini-batch."""

    def __post_init__(self) -> None:
        check_numbers("loading", self)

    def seconds(self, rows: float, row_bytes: float) -> float:
        """Return the time in seconds to load `rows` rows."""
        return self.launch_s + rows * (self.row_s + row_bytes / (self.gb_s * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """Cost of sampling mini-batches of one size from a graph with a number of threads."""

    renumbers: bool
    """Whether input vertices are deduplicated and numbered, which aggregated or in-place input avoids."""
    graph_bytes: Positive
    edges: Positive
    """Number of sampled edges per mini-batch."""
    threads: Count
    edges_per_s: Positive

    def __post_init__(self) -> None:
        check_numbers("sampling", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkCost:
    """Cost of sampling random-walk subgraphs from a graph with a number of threads."""

    graph_bytes: Positive
    threads: Count
    step_s: NonNegative
    """Cost per walk step, including the deduplication and numbering of visited vertices."""
    scan_s: NonNegative
    """Cost per in-edge of the subgraph's vertices, all of which are scanned to find the edges inside."""
    launch_s: NonNegative = 0.0
    """Fixed cost per mini-batch."""

    def __post_init__(self) -> None:
        check_numbers("walking", self)

    def seconds(self, steps: float, scanned_edges: float) -> float:
        """Return the seconds to sample subgraphs, from their walk steps and scanned edges."""
        return self.launch_s + steps * self.step_s + scanned_edges * self.scan_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCost:
    """Cost of multiplying sparse rows by weights and of the weight gradient, with a number of threads."""

    product_width: Positive
    """Number of columns of the product."""
    weight_bytes: Positive
    """Size of the weights in bytes. Weights that fit in a cache are read faster."""
    threads: Count
    macs_per_s: Positive
    weight_s: NonNegative
    """Cost per weight, for transposing the matrix, and for clearing and transposing its gradient."""

    def __post_init__(self) -> None:
        check_numbers("sparse", self)


def load_seconds(
    table: Sequence[LoadCost],
    form: LoadForm,
    rows: float,
    row_bytes: float,
    *,
    model: str = "",
    matrix_bytes: float,
    threads: int,
) -> float:
    """Return the time to load rows, interpolated in the logarithms of matrix size and threads.

    Outside the measured range, the nearest measurement is used. Raises ValueError if the form was not
    measured.
    """
    entries = [entry for entry in table if entry.form == form and entry.model in ("", model)]
    if not entries:
        raise ValueError(
            f"loading rows in the form {form!r} was not measured" + (f" for {model}" if model else "")
        )

    def by_matrix(entries: Sequence[LoadCost]) -> float:
        return interpolate(
            matrix_bytes, {cost.matrix_bytes: cost.seconds(rows, row_bytes) for cost in entries}
        )

    return interpolate(threads, _grouped(entries, lambda entry: entry.threads, by_matrix))


def edges_per_second(
    table: Sequence[SampleCost], *, renumbers: bool, graph_bytes: float, edges: float, threads: int
) -> float:
    """Return the sampled edges per second, interpolated by graph size, mini-batch size and threads."""

    def by_edges(entries: Sequence[SampleCost]) -> float:
        return interpolate(edges, {entry.edges: entry.edges_per_s for entry in entries})

    def by_graph(entries: Sequence[SampleCost]) -> float:
        return interpolate(graph_bytes, _grouped(entries, lambda entry: entry.graph_bytes, by_edges))

    entries = [entry for entry in table if entry.renumbers == renumbers]
    return interpolate(threads, _grouped(entries, lambda entry: entry.threads, by_graph))


def walk_seconds(
    table: Sequence[WalkCost], *, steps: float, scanned_edges: float, graph_bytes: float, threads: int
) -> float:
    """Return the time to sample subgraphs, interpolated as in `load_seconds`."""

    def by_graph(entries: Sequence[WalkCost]) -> float:
        return interpolate(
            graph_bytes, {cost.graph_bytes: cost.seconds(steps, scanned_edges) for cost in entries}
        )

    return interpolate(threads, _grouped(table, lambda entry: entry.threads, by_graph))


def sparse_seconds(
    table: Sequence[SparseCost],
    *,
    macs: float,
    weights: float,
    product_width: int,
    weight_bytes: float,
    threads: int,
) -> float:
    """Return the time of a sparse product and its gradient, interpolated as in `load_seconds`.

    `macs` is the number of multiply-accumulates of both, `weights` the number of weights of all products, and
    `weight_bytes` the size of one product's weights.
    """

    def by_weights(entries: Sequence[SparseCost]) -> float:
        return interpolate(
            weight_bytes,
            {cost.weight_bytes: macs / cost.macs_per_s + weights * cost.weight_s for cost in entries},
        )

    def by_width(entries: Sequence[SparseCost]) -> float:
        return interpolate(product_width, _grouped(entries, lambda entry: entry.product_width, by_weights))

    return interpolate(threads, _grouped(table, lambda entry: entry.threads, by_width))


def _grouped(
    entries: Sequence[E], key: Callable[[E], float], value: Callable[[Sequence[E]], float]
) -> dict[float, float]:
    """Group entries by key and return the value of each group."""
    keys = {key(entry) for entry in entries}
    return {k: value([entry for entry in entries if key(entry) == k]) for k in keys}


def interpolate(x: float, points: dict[float, float]) -> float:
    """Interpolate linearly in the logarithms of x and y. Outside the points, return the nearest value."""
    xs = sorted(points)
    if x <= xs[0]:
        return points[xs[0]]
    if x >= xs[-1]:
        return points[xs[-1]]
    upper = next(i for i, value in enumerate(xs) if value >= x)
    low, high = xs[upper - 1], xs[upper]
    fraction = (math.log(x) - math.log(low)) / (math.log(high) - math.log(low))
    if min(points[low], points[high]) <= 0:
        return points[low] + fraction * (points[high] - points[low])
    return math.exp(math.log(points[low]) + fraction * (math.log(points[high]) - math.log(points[low])))


_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherCost:
    """Cost of reading a matrix's rows along the edges of a random graph and of combining the rows."""

    kind: GatherKind
    """Reduction. The maximum is not measured: it costs the same as a sum, with twice the rows backward."""
    back: bool
    """Whether this is the cost of a backward pass; False for sums, which cost the same in both directions."""
    matrix_bytes: Positive
    """Size of the matrix in bytes. Matrices that fit in a cache are read faster."""
    row_s: NonNegative
    """Cost per row, independent of the width."""
    gb_s: Positive
    """Bandwidth of rows in 1e9 bytes per second."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph: reads", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    """Cost of the edge loops that are compiled for a kind of model, which is equal in both directions."""

    edge_s: NonNegative
    """Cost per edge, independent of the message width."""
    value_s: NonNegative
    """Additional cost per column of a message."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph: loops", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphRates:
    """Rates of full-graph steps on all cores. With fewer threads, the time grows in inverse proportion."""

    threads: Count
    reads: tuple[GatherCost, ...]
    mask_s: NonNegative
    """Cost of an attention mask per edge and head."""
    call_s: NonNegative
    """Fixed cost of one pass over a chunk of rows."""
    macs_per_s: Unbounded
    values_per_s: Unbounded
    """Number of values that row-wise passes read and write per second."""
    loops: Mapping[str, LoopCost] = field(default_factory=dict)
    """Loop costs by measured kind of model, without the four kinds that have hand-written operators."""

    looped: Mapping[str, float] = field(default_factory=dict)
    """Time of the compiled loops that training in chunks uses, relative to these operators, by reduction:
    `sum`, `max`, `attention`, and `attention back` for its gradients. Empty if not measured."""

    def __post_init__(self) -> None:
        check_numbers("whole_graph", self)

    def covers(self, step: FullGraphStep, model: str) -> bool:
        """Return whether the costs of all gathers in a step of a kind of model were measured."""
        return model in self.loops or all(reads.kind != "loops" for reads in step.reads)

    def reads_s(self, reads: Sequence[EdgeReads], threads: int, model: str = "") -> float:
        """Return the time to gather with a number of threads, for a kind of model that `covers` accepts."""
        return sum(self._read_s(item, model) for item in reads) * self.threads / threads

    def loop_reads_s(self, reads: Sequence[EdgeReads], threads: int, model: str = "") -> float | None:
        """Return the time to gather with compiled loops, as in chunks, or None if it was not measured."""
        total = 0.0
        for item in reads:
            reduction = f"{item.kind} back" if item.kind == "attention" and item.is_backward else item.kind
            factor = 1.0 if item.kind == "loops" else self.looped.get(reduction)
            if factor is None:
                return None
            total += factor * self._read_s(item, model)
        return total * self.threads / threads

    def rows_s(self, step: FullGraphStep, threads: int) -> float:
        """Return the time of row-wise passes with a number of threads, excluding products of sparse rows."""
        seconds = step.calls * self.call_s + step.macs / self.macs_per_s + step.values / self.values_per_s
        return seconds * self.threads / threads

    def _read_s(self, reads: EdgeReads, model: str) -> float:
        if reads.kind == "loops":
            cost = self.loops[model]
            return reads.rows * (cost.edge_s + reads.width * cost.value_s)
        kind: GatherKind = "sum" if reads.kind == "max" else reads.kind
        # The backward pass of a maximum reads the gradient row and each column's winning source.
        rows = reads.rows * (2 if reads.kind == "max" and reads.is_backward else 1)
        row_s = self._row_s(kind, reads.is_backward, reads.sources, reads.width)
        seconds = rows * (row_s + reads.masked_heads * self.mask_s)
        # A skipped edge still costs a lookup of its end point: one value per vertex.
        return seconds + (
            reads.num_skipped * self._row_s("sum", False, reads.sources, 1) if reads.num_skipped else 0.0
        )

    def _row_s(self, kind: GatherKind, is_backward: bool, sources: float, width: int) -> float:
        is_backward = is_backward and kind != "sum"
        row_bytes = width * _FLOAT_BYTES
        costs = [cost for cost in self.reads if (cost.kind, cost.back) == (kind, is_backward)]
        return interpolate(
            sources * row_bytes,
            {cost.matrix_bytes: cost.row_s + row_bytes / (cost.gb_s * 1e9) for cost in costs},
        )


_VALUE_BYTES = 4
# Number of values that are gathered at a time.
_PIECE_VALUES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReadCost:
    """Cost of reading rows along edges and adding up the rows of each destination."""

    matrix_bytes: Positive
    """Size of the source matrix in bytes. Matrices that fit in a cache are read faster."""
    edge_s: NonNegative
    """Cost per edge, independent of the row width."""
    gb_s: Positive
    """Bandwidth of rows in 1e9 bytes per second."""

    def __post_init__(self) -> None:
        check_numbers("chunks: reads", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChunkRates:
    """Rates at which `threads` threads alternately copy and compute chunks."""

    threads: Count
    copy_gb_s: Positive
    """Bandwidth of copies of sums and results to and from the chunk buffers, in 1e9 bytes per second."""
    reads: tuple[ChunkReadCost, ...]
    """Cost of gathers along edges for each measured matrix size."""
    factor_s: NonNegative
    """Cost per edge of scaling its source row."""
    factor_value_s: NonNegative
    """Cost per edge and column of scaling its source row."""
    row_s: NonNegative
    """Cost per destination row and chunk, independent of the width."""
    row_value_s: NonNegative
    """Additional cost per column of a destination row."""
    call_s: NonNegative
    """Fixed cost per piece of a chunk."""
    macs_per_s: Unbounded
    values_per_s: Unbounded
    """Number of result values that row-wise passes (activations, their gradients, biases) read per second."""
    drawn_per_s: Unbounded
    """Number of random values that dropout generates per second."""
    scores_per_s: Unbounded
    """Number of scores for which loss and gradient are computed per second."""

    compute_copies = True
    """Whether the threads that compute also copy, so that copies never overlap with computation."""

    def __post_init__(self) -> None:
        check_numbers("host: chunks", self)
        if not self.reads:
            raise ValueError("host: chunks: reads must contain the cost of reading rows")

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of row copies, which stay in host memory."""
        return self.copy_gb_s * 1e9

    def copy_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes of rows in memory."""
        return size / self.link_bytes_per_s

    def upload_s(self, size: float) -> float:
        """Return 0, because rows are read in place."""
        return 0.0

    def edges_s(self, edges: float) -> float:
        """Return 0, because edges are read in place."""
        return 0.0

    def source_dropout_s(self, size: float) -> float:
        """Return the seconds of dropout on `size` bytes of source rows, including their copy."""
        return self.copy_s(size) + self.dropout_s(size / _VALUE_BYTES)

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Return the time in seconds to gather rows along the edges of a chunk, or 0 if there are none."""
        if not shape.edges:
            return 0.0
        row_bytes = shape.width * _VALUE_BYTES
        read_s = interpolate(
            max(1.0, shape.read_rows * row_bytes),
            {cost.matrix_bytes: cost.edge_s + row_bytes / (cost.gb_s * 1e9) for cost in self.reads},
        )
        if shape.scaled:
            read_s += self.factor_s + shape.width * self.factor_value_s
        row_s = self.row_s + shape.width * self.row_value_s
        pieces = max(1.0, shape.edges * shape.width / _PIECE_VALUES)
        return pieces * self.call_s + shape.edges * read_s + shape.rows * row_s

    def dropout_s(self, numbers: float) -> float:
        """Return the seconds of dropout on `numbers` values."""
        return numbers / self.drawn_per_s

    def forward_s(self, rows: float, layer: GatherLayer) -> float:
        """Return the seconds of a layer's products, activations and dropout."""
        seconds = self.call_s + rows * (
            layer.weights / self.macs_per_s + layer.num_results / self.values_per_s
        )
        return seconds + (self.dropout_s(rows * layer.out_width) if layer.has_dropout else 0.0)

    def backward_s(self, rows: float, layer: GatherLayer, *, needs_input_grad: bool) -> float:
        """Return the seconds of weight gradients and, if `needs_input_grad`, of the input gradient."""
        macs_s = layer.backward_macs(needs_input_grad=needs_input_grad) / self.macs_per_s
        return self.call_s + rows * (macs_s + layer.num_results / self.values_per_s)

    def loss_s(self, rows: float, classes: int) -> float:
        """Return the seconds to compute the loss of the scores and its gradient."""
        return self.call_s + rows * classes / self.scores_per_s
