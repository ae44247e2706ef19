"""What a host's own stages were measured to take: tables that no closed form replaces."""

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
    """Loading random rows of a matrix with some threads."""

    form: LoadForm
    """`rows` are copied, `aggregated` ones summed, `sparse` ones copied without their zeros."""
    model: str = ""
    """Kind of model whose aggregate it is: its factors on the rows cost too. Empty for rows."""
    matrix_bytes: Positive
    """Size of the feature matrix: what lies in a cache is faster."""
    threads: Count
    """Threads of the load stage."""
    row_s: NotNegative
    """What a row costs whatever its width."""
    gb_s: Positive
    """1e9 bytes a second of rows."""
    launch_s: NotNegative = 0.0
    """What a mini-batch costs whatever its rows."""

    def __post_init__(self) -> None:
        check_numbers("loading", self)

    def seconds(self, rows: float, row_bytes: float) -> float:
        """Time to load that many rows."""
        return self.launch_s + rows * (self.row_s + row_bytes / (self.gb_s * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """Sampling mini-batches of one size from a graph with some threads."""

    renumbers: bool
    """Whether the input vertices are found and numbered: not where the input is aggregated or read in place.
    """
    graph_bytes: Positive
    """Size of the topology."""
    edges: Positive
    """Sampled edges of the mini-batch."""
    threads: Count
    """Threads of the sample stage."""
    edges_per_s: Positive
    """Sampled edges a second."""

    def __post_init__(self) -> None:
        check_numbers("sampling", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkCost:
    """Sampling subgraphs of random walks from a graph with some threads."""

    graph_bytes: Positive
    """Size of the topology."""
    threads: Count
    """Threads of the sample stage."""
    step_s: NotNegative
    """What a step of a walk costs, with finding and numbering the vertices met."""
    scan_s: NotNegative
    """What an edge into the subgraph's vertices costs, of which those inside are kept."""
    launch_s: NotNegative = 0.0
    """What a mini-batch costs whatever its walks."""

    def __post_init__(self) -> None:
        check_numbers("walking", self)

    def seconds(self, steps: float, scanned_edges: float) -> float:
        """Time to sample subgraphs of so many steps and edges."""
        return self.launch_s + steps * self.step_s + scanned_edges * self.scan_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCost:
    """Multiplying sparse rows by weights and computing the weights' gradient, with some threads."""

    product_width: Positive
    """Columns of the product."""
    weight_bytes: Positive
    """Size of the weights: rows of what lies in a cache are read faster."""
    threads: Count
    """Threads of the CPU trainer."""
    macs_per_s: Positive
    """Multiply-accumulates a second."""
    weight_s: NotNegative
    """What each weight costs: turning the matrix, and clearing and turning its gradient."""

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
    """Time to load rows, interpolated in the logarithms of matrix sizes and threads; beyond, the nearest.

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
        return between(matrix_bytes, {each.matrix_bytes: each.seconds(rows, row_bytes) for each in entries})

    return between(threads, _grouped(entries, lambda entry: entry.threads, by_matrix))


def edges_per_second(
    table: Sequence[SampleCost], *, renumbers: bool, graph_bytes: float, edges: float, threads: int
) -> float:
    """Sampled edges per second, between measured graphs, mini-batches and threads, as in `load_seconds`."""

    def by_edges(entries: Sequence[SampleCost]) -> float:
        return between(edges, {entry.edges: entry.edges_per_s for entry in entries})

    def by_graph(entries: Sequence[SampleCost]) -> float:
        return between(graph_bytes, _grouped(entries, lambda entry: entry.graph_bytes, by_edges))

    entries = [entry for entry in table if entry.renumbers == renumbers]
    return between(threads, _grouped(entries, lambda entry: entry.threads, by_graph))


def walk_seconds(
    table: Sequence[WalkCost], *, steps: float, scanned_edges: float, graph_bytes: float, threads: int
) -> float:
    """Time to sample subgraphs, interpolated as in `load_seconds`."""

    def by_graph(entries: Sequence[WalkCost]) -> float:
        return between(
            graph_bytes, {each.graph_bytes: each.seconds(steps, scanned_edges) for each in entries}
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
    """Time of a product of sparse rows and of its gradient, interpolated as in `load_seconds`.

    Parameters
    ----------
    table
        What was measured.
    macs
        Multiply-accumulates of both.
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
            {each.weight_bytes: macs / each.macs_per_s + weights * each.weight_s for each in entries},
        )

    def by_width(entries: Sequence[SparseCost]) -> float:
        return between(product_width, _grouped(entries, lambda entry: entry.product_width, by_weights))

    return between(threads, _grouped(table, lambda entry: entry.threads, by_width))


def _grouped(
    entries: Sequence[E], key: Callable[[E], float], value: Callable[[Sequence[E]], float]
) -> dict[float, float]:
    """The value of the entries of each key."""
    keys = {key(entry) for entry in entries}
    return {k: value([entry for entry in entries if key(entry) == k]) for k in keys}


def between(x: float, points: dict[float, float]) -> float:
    """Interpolate in the logarithms of both; beyond the ends, the value there."""
    at = sorted(points)
    if x <= at[0]:
        return points[at[0]]
    if x >= at[-1]:
        return points[at[-1]]
    upper = next(i for i, value in enumerate(at) if value >= x)
    low, high = at[upper - 1], at[upper]
    part = (math.log(x) - math.log(low)) / (math.log(high) - math.log(low))
    if min(points[low], points[high]) <= 0:
        return points[low] + part * (points[high] - points[low])
    return math.exp(math.log(points[low]) + part * (math.log(points[high]) - math.log(points[low])))
