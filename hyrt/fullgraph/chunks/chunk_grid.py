"""Smallest grid of chunks that fits a device's memory, and the buffer sizes that a model needs for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hyrt_perfmodel.chunks.chunk_schedule import MAX_PARTS
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.formatting import format_bytes
from hyrt.fullgraph.chunks.edge_chunks import ChunkCounts, count_chunks
from hyrt.fullgraph.chunks.intervals import GroupedIntervals, Intervals, RowIntervals
from hyrt.graph.topology import Topology
from hyrt.nn.description import LayerDescription, ModelDescription

# Number of candidates that are tried one by one before steps grow.
_ONE_BY_ONE = 32


class NoFeasibleSizeError(Exception):
    """Raised if even the largest number is infeasible; `needed` is its cost, or a lower bound of the cost."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def smallest_feasible(
    lower_bound: Callable[[int], int], needs: Callable[[int], int], limit: int, *, minimum: int, maximum: int
) -> int:
    """Find the smallest number from `minimum` to `maximum` whose cost `needs` is at most `limit`.

    Costs need not decrease monotonically, but their cheap `lower_bound` must. If many numbers are infeasible,
    the search takes growing steps and then bisects; the result is feasible while one less is not. Raises
    NoFeasibleSizeError if the cost of `maximum` is too high.
    """
    low, high = max(1, min(minimum, maximum)), maximum
    if lower_bound(high) > limit:
        raise NoFeasibleSizeError(lower_bound(high))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if lower_bound(middle) <= limit else (middle + 1, high)
    number, too_few, step = low, low - 1, 1
    while (needed := needs(number)) > limit:
        if number == maximum:
            raise NoFeasibleSizeError(needed)
        too_few = number
        if number - low >= _ONE_BY_ONE:
            step *= 2
        number = min(maximum, number + step)
    while number - too_few > 1:
        middle = (number + too_few) // 2
        if needs(middle) <= limit:
            number = middle
        else:
            too_few = middle
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """Maximum sizes of the chunks of a grid, which determine the sizes of a device's buffers."""

    vertices: int
    """Vertices per interval."""
    targets: int
    """Targets per interval."""
    edges: int
    """Edges per chunk."""
    edge_rows: int
    """Rows with edges per chunk."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """Intervals of vertices and targets, and the contents of the chunks."""

    vertices: Intervals
    """The vertices that are computed."""
    sources: RowIntervals
    """The same vertices, followed by those that are received from other processes."""
    targets: Intervals
    all_edges: ChunkCounts | None
    """Edges by destination and source; None if no layer reads all edges in chunks."""
    target_edges: ChunkCounts
    """Edges into the targets, by destination and source."""
    sizes: ChunkSizes

    @classmethod
    def build(
        cls,
        topology: Topology,
        targets: NDArray[np.integer],
        num: int,
        *,
        has_hidden_layers: bool,
        remote: Sequence[int] = (),
    ) -> ChunkGrid:
        """Cut a graph into `num` intervals of vertices, and the targets into intervals that are no longer.

        `targets` are [n], ascending. With `has_hidden_layers`, a layer is computed at all vertices, and not
        only at the targets. `remote` is the number of the topology's last vertices that each exchange
        receives from other processes; their intervals are no longer than those of the other vertices, which
        are cut into `num`.
        """
        vertices = Intervals(topology.num_vertices - sum(remote), num)
        sources: RowIntervals = GroupedIntervals.build(vertices, remote) if remote else vertices
        target_intervals = Intervals(len(targets), -(-len(targets) // vertices.longest))
        indptr, indices = topology.indptr, topology.indices
        target_counts = count_chunks(indptr, indices, target_intervals, sources, targets)
        edges, rows = [target_counts.edges], [target_counts.rows]
        # The backward pass transposes chunks: their columns become rows.
        max_rows = min(_largest(target_counts.edges), vertices.longest)
        all_counts = None
        if has_hidden_layers:
            all_counts = count_chunks(indptr, indices, vertices, sources)
            edges.append(all_counts.edges)
            rows.append(all_counts.rows)
            max_rows = max(max_rows, min(_largest(all_counts.edges), vertices.longest))
        sizes = ChunkSizes(
            vertices=vertices.longest,
            targets=target_intervals.longest,
            edges=max(_largest(each) for each in edges),
            edge_rows=max(max_rows, *(_largest(each) for each in rows)),
        )
        return cls(vertices, sources, target_intervals, all_counts, target_counts, sizes)


def _largest(counts: NDArray[np.int64]) -> int:
    """Return the maximum over all chunks; 0 if there are none."""
    return int(counts.max(initial=0))


def min_chunk_grid(
    topology: Topology,
    targets: NDArray[np.integer],
    needs: Callable[[ChunkSizes], int],
    budget_bytes: int,
    *,
    has_hidden_layers: bool,
    remote: Sequence[int] = (),
    min_intervals: int = 1,
    device: str = "a device",
) -> ChunkGrid:
    """Cut a graph into the fewest intervals that fit (NeuGraph, section 3.1).

    If this takes many intervals, the result is a number that fits while one less does not. A few less may
    still fit because interval boundaries move.

    Parameters
    ----------
    topology
        All edges.
    targets
        [n] targets, ascending.
    needs
        Returns the bytes that a device needs for chunks of these sizes; increases with the sizes.
    budget_bytes
        Available bytes.
    has_hidden_layers
        Whether a layer is computed at all vertices, and not only at the targets.
    remote
        Number of the topology's last vertices that each exchange receives from other processes.
    min_intervals
        The smallest number of intervals to try.
    device
        Name of the device, for messages.

    Raises
    ------
    DeviceOutOfMemoryError
        If chunks of single vertices, or of the maximum number of intervals, do not fit.
    """
    num_vertices = topology.num_vertices - sum(remote)
    # Do not use in-degrees: they may count edges that other processes have.
    num_edges = int((topology.indptr[targets + 1] - topology.indptr[targets]).sum(dtype=np.int64))
    max_edges = topology.num_edges if has_hidden_layers else num_edges

    def bound(num: int) -> int:
        """Return a lower bound of the bytes of any grid of `num` intervals: that of equal chunks."""
        longest = -(-num_vertices // num)
        of_targets = max(1, -(-len(targets) // longest))
        sources = num + sum(-(-count // longest) for count in remote)
        edges = (
            -(-max_edges // (num * sources)) if has_hidden_layers else -(-num_edges // (sources * of_targets))
        )
        rows = min(edges, 1)
        short = -(-len(targets) // of_targets)
        return needs(ChunkSizes(vertices=longest, targets=short, edges=edges, edge_rows=rows))

    grid: ChunkGrid | None = None

    def taken(num: int) -> int:
        """Return the bytes of a grid of `num` intervals; remember the last grid that fits."""
        nonlocal grid
        candidate = ChunkGrid.build(
            topology, targets, num, has_hidden_layers=has_hidden_layers, remote=remote
        )
        needed = needs(candidate.sizes)
        if needed <= budget_bytes:
            grid = candidate
        return needed

    maximum = max_intervals(num_vertices)
    try:
        smallest_feasible(bound, taken, budget_bytes, minimum=min_intervals, maximum=maximum)
    except NoFeasibleSizeError as none:
        raise no_grid_error(
            none.needed, budget_bytes, device, None if maximum == num_vertices else maximum
        ) from None
    assert grid is not None
    return grid


def max_intervals(rows: int) -> int:
    """Return the maximum number of intervals of `rows` rows."""
    return min(rows, MAX_PARTS)


def too_few_intervals_error(device: str, num: int, needed: int, free: int) -> DeviceOutOfMemoryError:
    """Return the error for a configured number of intervals that does not fit; sizes are in bytes."""
    return DeviceOutOfMemoryError(
        f"{device}: chunks of {num} intervals take {format_bytes(needed)}, and "
        f"{format_bytes(free)} are free for them",
        remedy="raise fullgraph.chunks or fullgraph.device_memory, or leave fullgraph.chunks at 0",
    )


def no_grid_error(
    needed: int, budget: int, device: str = "a device", intervals: int | None = None
) -> DeviceOutOfMemoryError:
    """Return the error if no grid fits; `needed` and `budget` are in bytes.

    `intervals` is the maximum number of intervals, if it is below one per vertex.
    """
    chunks = "chunks of single vertices" if intervals is None else f"{intervals:,} x {intervals:,} chunks"
    return DeviceOutOfMemoryError(
        f"even {chunks} take {format_bytes(needed)} of {device}, which has {format_bytes(budget)} for them",
        remedy="raise fullgraph.device_memory, or lower model.hidden",
    )


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Number of values in each buffer of `ChunkKernels`, and in the edges of a chunk."""

    read: int
    accumulated: int
    results: tuple[int, ...]
    """Output of each product of a layer; in the backward pass, the gradient of its input."""
    edge_rows: int
    """Rows per chunk of edges; their offsets have one entry more."""
    edges: int
    vertices: int
    """Vertices per interval, for scales of both ends and for dropout keys."""
    targets: int

    @classmethod
    def from_model(cls, model: ModelDescription, chunks: ChunkSizes) -> BufferSizes:
        """Compute the sizes that hold every chunk of every layer, if `chunks` are the largest chunks."""
        last = len(model.layers) - 1
        read = accumulated = 0
        results = [0] * max(len(layer.products) for layer in model.layers)
        for i, layer in enumerate(model.layers):
            rows = chunks.targets if i == last else chunks.vertices
            gathered, input_columns = layer.products[0].weight.shape[1], input_width(layer)
            # The backward pass accumulates into the rows that the forward pass reads.
            read = max(read, chunks.vertices * input_columns, rows * gathered)
            accumulated = max(accumulated, rows * gathered, chunks.vertices * input_columns if i else 0)
            for p, product in enumerate(layer.products):
                outputs, inputs = product.weight.shape
                results[p] = max(results[p], rows * max(outputs, inputs if p or i else 0))
        classes = model.layers[-1].products[-1].weight.shape[0]
        return cls(
            read=max(read, chunks.targets * classes),  # Also holds the gradient of the scores.
            accumulated=accumulated,
            results=tuple(results),
            # The self loops of destinations are a chunk of one edge per row.
            edge_rows=max(chunks.edge_rows, chunks.vertices),
            edges=max(chunks.edges, chunks.vertices),
            vertices=chunks.vertices,
            targets=chunks.targets,
        )


def input_width(layer: LayerDescription) -> int:
    """Return the number of columns of the rows that a layer gathers."""
    width: int = layer.products[0].weight.shape[1]
    return width // 2 if layer.aggregation.self_path == "concat" else width


def uses_dropout(model: ModelDescription) -> bool:
    """Return whether a model has any dropout."""
    return bool(model.input_dropout or any(layer.dropout for layer in model.layers))
