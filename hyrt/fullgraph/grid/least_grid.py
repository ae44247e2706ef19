"""Smallest number of intervals whose chunks fit a device's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hyrt_perfmodel.chunks.dealt_columns import MOST_PARTS
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.grid.edge_chunks import ChunkCounts, count_chunks
from hyrt.fullgraph.grid.intervals import Cut, Intervals, JoinedIntervals
from hyrt.fullgraph.grid.least_number import NoneFits, least_number
from hyrt.graph.topology import Topology
from hyrt.quantities import size


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
    sources: Cut
    """The same vertices, followed by those whose rows are received from other processes."""
    targets: Intervals
    all_edges: ChunkCounts | None
    """Edges by destination and source; None if no layer reads them in chunks."""
    target_edges: ChunkCounts
    """Edges into the targets, by destination and source."""
    sizes: ChunkSizes

    @classmethod
    def of(
        cls,
        topology: Topology,
        targets: NDArray[np.integer],
        num: int,
        *,
        hidden: bool,
        remote: Sequence[int] = (),
    ) -> ChunkGrid:
        """Cut a graph into `num` intervals of vertices, and the targets into intervals that are no longer.

        Parameters
        ----------
        topology
            All edges.
        targets
            [n] the targets, ascending.
        num
            Number of intervals.
        hidden
            Whether a layer is computed at all vertices, and not only at the targets.
        remote
            Number of the topology's last vertices that each exchange receives from other processes. Their
            intervals are no longer than those of the other vertices, which are cut into `num`.
        """
        vertices = Intervals(topology.num_vertices - sum(remote), num)
        sources: Cut = JoinedIntervals.of(vertices, remote) if remote else vertices
        target_intervals = Intervals(len(targets), -(-len(targets) // vertices.longest))
        indptr, indices = topology.indptr, topology.indices
        target_counts = count_chunks(indptr, indices, target_intervals, sources, targets)
        edges, rows = [target_counts.edges], [target_counts.rows]
        # In the backward pass, the rows of a chunk are its columns.
        max_rows = min(_largest(target_counts.edges), vertices.longest)
        all_counts = None
        if hidden:
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


def least_grid(
    topology: Topology,
    targets: NDArray[np.integer],
    needs: Callable[[ChunkSizes], int],
    budget_bytes: int,
    *,
    hidden: bool,
    remote: Sequence[int] = (),
    first: int = 1,
    device: str = "a device",
) -> ChunkGrid:
    """Cut a graph into the fewest intervals that fit (NeuGraph, section 3.1).

    If this takes many, the result is a number that fits while one less does not. A few less may still fit by
    chance of their boundaries.

    Parameters
    ----------
    topology, targets, hidden, remote
        See `ChunkGrid.of`.
    needs
        Returns the bytes that a device needs for chunks of these sizes; increases with the sizes.
    budget_bytes
        The bytes that are available.
    first
        The smallest number of intervals to try.
    device
        Name of the device, for messages.

    Raises
    ------
    DeviceOutOfMemory
        If chunks of single vertices, or of the maximum number of intervals, do not fit.
    """
    num_vertices = topology.num_vertices - sum(remote)
    # Do not use in-degrees: they may count edges that other processes have.
    num_edges = int((topology.indptr[targets + 1] - topology.indptr[targets]).sum(dtype=np.int64))
    max_edges = topology.num_edges if hidden else num_edges

    def bound(num: int) -> int:
        """Return a lower bound of the bytes of any grid of `num` intervals: all chunks are equal."""
        longest = -(-num_vertices // num)
        of_targets = max(1, -(-len(targets) // longest))
        sources = num + sum(-(-count // longest) for count in remote)
        edges = -(-max_edges // (num * sources)) if hidden else -(-num_edges // (sources * of_targets))
        rows = min(edges, 1)
        short = -(-len(targets) // of_targets)
        return needs(ChunkSizes(vertices=longest, targets=short, edges=edges, edge_rows=rows))

    grid: ChunkGrid | None = None

    def taken(num: int) -> int:
        """Return the bytes of a grid; remember the last grid that fits."""
        nonlocal grid
        candidate = ChunkGrid.of(topology, targets, num, hidden=hidden, remote=remote)
        needed = needs(candidate.sizes)
        if needed <= budget_bytes:
            grid = candidate
        return needed

    maximum = most_intervals(num_vertices)
    try:
        least_number(bound, taken, budget_bytes, first=first, most=maximum)
    except NoneFits as none:
        raise exhausted(
            none.needed, budget_bytes, device, None if maximum == num_vertices else maximum
        ) from None
    assert grid is not None
    return grid


def most_intervals(rows: int) -> int:
    """Return the maximum number of intervals of some rows."""
    return min(rows, MOST_PARTS)


def asked_too_few(device: str, num: int, needed: int, free: int) -> DeviceOutOfMemory:
    """Return the error for a configured number of intervals that does not fit; sizes are in bytes."""
    return DeviceOutOfMemory(
        f"{device}: chunks of {num} intervals take {size(needed)}, and {size(free)} are free for them",
        remedy="raise fullgraph.chunks or fullgraph.device_memory, or leave fullgraph.chunks at 0",
    )


def exhausted(
    needed: int, budget: int, device: str = "a device", intervals: int | None = None
) -> DeviceOutOfMemory:
    """Return the error if no grid fits; sizes are in bytes.

    `intervals` is the maximum number of intervals, if it is below one per vertex.
    """
    chunks = "chunks of single vertices" if intervals is None else f"{intervals:,} x {intervals:,} chunks"
    return DeviceOutOfMemory(
        f"even {chunks} take {size(needed)} of {device}, which has {size(budget)} for them",
        remedy="raise fullgraph.device_memory, or lower model.hidden",
    )
