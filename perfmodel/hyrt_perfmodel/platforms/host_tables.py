"""Tables of measured host stage costs for which there is no closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hyrt_perfmodel.checks import Count, NotNegative, Positive, check_numbers
from hyrt_perfmodel.workloads.workload import LoadForm

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """Cost of loading random rows of a matrix with a number of threads."""

    form: LoadForm
    """Input form: `rows` are copied, `aggregated` rows are summed, `sparse` rows are copied without zeros."""
    model: str = ""
    """Kind of model whose aggregation this is, since its edge weights add cost. Empty for rows."""
    matrix_bytes: Positive
    """Size of the feature matrix; matrices that fit in a cache are read faster."""
    threads: Count
    """Threads of the load stage."""
    row_s: NotNegative
    """Cost per row, independent of width."""
    gb_s: Positive
    """Row bandwidth, in 1e9 bytes per second."""
    launch_s: NotNegative = 0.0
    """Fixed cost per mini-batch."""

    def __post_init__(self) -> None:
        check_numbers("loading", self)

    def seconds(self, rows: float, row_bytes: float) -> float:
        """Return the seconds to load `rows` rows."""
        return self.launch_s + rows * (self.row_s + row_bytes / (self.gb_s * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """Cost of sampling mini-batches of one size from a graph with a number of threads."""

    renumbers: bool
    """Whether the input vertices are deduplicated and numbered; not needed if the input is aggregated or read
    in place.
    """
    graph_bytes: Positive
    """Size of the topology."""
    edges: Positive
    """Sampled edges per mini-batch."""
    threads: Count
    """Threads of the sample stage."""
    edges_per_s: Positive
    """Sampled edges per second."""

    def __post_init__(self) -> None:
        check_numbers("sampling", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkCost:
    """Cost of sampling random-walk subgraphs from a graph with a number of threads."""

    graph_bytes: Positive
    """Size of the topology."""
    threads: Count
    """Threads of the sample stage."""
    step_s: NotNegative
    """Cost per walk step, including deduplicating and numbering the visited vertices."""
    scan_s: NotNegative
    """Cost per incoming edge of the subgraph's vertices, scanned to find the edges inside."""
    launch_s: NotNegative = 0.0
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
    """Columns of the product."""
    weight_bytes: Positive
    """Size of the weights; weight rows that fit in a cache are read faster."""
    threads: Count
    """Threads of the CPU trainer."""
    macs_per_s: Positive
    """Multiply-accumulates per second."""
    weight_s: NotNegative
    """Cost per weight of transposing the matrix, and of clearing and transposing its gradient."""

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

    Values outside the measured range take the nearest measurement.

    Raises
    ------
    ValueError
        If the form was not measured.
    """
    entries = [entry for entry in table if entry.form == form and entry.model in ("", model)]
    if not entries:
        raise ValueError(
            f"loading in the form {form!r} was not measured" + (f" for {model}" if model else "")
        )

    def by_matrix(entries: Sequence[LoadCost]) -> float:
        return between(matrix_bytes, {cost.matrix_bytes: cost.seconds(rows, row_bytes) for cost in entries})

    return between(threads, _grouped(entries, lambda entry: entry.threads, by_matrix))


def edges_per_second(
    table: Sequence[SampleCost], *, renumbers: bool, graph_bytes: float, edges: float, threads: int
) -> float:
    """Return sampled edges per second, interpolated over graph sizes, mini-batch sizes and threads."""

    def by_edges(entries: Sequence[SampleCost]) -> float:
        return between(edges, {entry.edges: entry.edges_per_s for entry in entries})

    def by_graph(entries: Sequence[SampleCost]) -> float:
        return between(graph_bytes, _grouped(entries, lambda entry: entry.graph_bytes, by_edges))

    entries = [entry for entry in table if entry.renumbers == renumbers]
    return between(threads, _grouped(entries, lambda entry: entry.threads, by_graph))


def walk_seconds(
    table: Sequence[WalkCost], *, steps: float, scanned_edges: float, graph_bytes: float, threads: int
) -> float:
    """Return the time to sample subgraphs, interpolated as in `load_seconds`."""

    def by_graph(entries: Sequence[WalkCost]) -> float:
        return between(
            graph_bytes, {cost.graph_bytes: cost.seconds(steps, scanned_edges) for cost in entries}
        )

    return between(threads, _grouped(table, lambda entry: entry.threads, by_graph))


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

    Parameters
    ----------
    table
        The measurements.
    macs
        Multiply-accumulates of the product and its gradient.
    weights
        Weights of all products.
    product_width
        Columns of a product.
    weight_bytes
        Bytes of one product's weights.
    threads
        Threads of the CPU trainer.
    """

    def by_weights(entries: Sequence[SparseCost]) -> float:
        return between(
            weight_bytes,
            {cost.weight_bytes: macs / cost.macs_per_s + weights * cost.weight_s for cost in entries},
        )

    def by_width(entries: Sequence[SparseCost]) -> float:
        return between(product_width, _grouped(entries, lambda entry: entry.product_width, by_weights))

    return between(threads, _grouped(table, lambda entry: entry.threads, by_width))


def _grouped(
    entries: Sequence[E], key: Callable[[E], float], value: Callable[[Sequence[E]], float]
) -> dict[float, float]:
    """Group entries by key and return the value of each group."""
    keys = {key(entry) for entry in entries}
    return {k: value([entry for entry in entries if key(entry) == k]) for k in keys}


def between(x: float, points: dict[float, float]) -> float:
    """Interpolate linearly in the logarithms of x and y; outside the points, return the nearest value."""
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
