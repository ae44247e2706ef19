"""The least number of intervals with which a device's memory suffices."""

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
    """The largest chunks of a grid, which a device's buffers have to hold."""

    vertices: int
    """Vertices of an interval."""
    targets: int
    """Targets of an interval of them."""
    edges: int
    """Edges of a chunk."""
    edge_rows: int
    """Rows with edges of a chunk."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """How the vertices and the targets are cut, and what the chunks hold."""

    vertices: Intervals
    """Those that are computed."""
    sources: Cut
    """The same, and after them those whose rows come from other processes."""
    targets: Intervals
    all_edges: ChunkCounts | None
    """Edges by destination and source; None where no layer reads them chunk by chunk."""
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
            How many intervals.
        hidden
            Whether a layer is computed at all vertices, and not at the targets alone.
        remote
            How many of the topology's last vertices come from other processes, in each exchange; their
            intervals are no longer than those of the others, which are cut into `num`.
        """
        vertices = Intervals(topology.num_vertices - sum(remote), num)
        sources: Cut = JoinedIntervals.of(vertices, remote) if remote else vertices
        of_targets = Intervals(len(targets), -(-len(targets) // vertices.longest))
        indptr, indices = topology.indptr, topology.indices
        into = count_chunks(indptr, indices, of_targets, sources, targets)
        edges, rows = [into.edges], [into.rows]
        # Backward, the rows of a chunk are its columns: as many as there are, or fewer.
        most_rows = min(_largest(into.edges), vertices.longest)
        everything = None
        if hidden:
            everything = count_chunks(indptr, indices, vertices, sources)
            edges.append(everything.edges)
            rows.append(everything.rows)
            most_rows = max(most_rows, min(_largest(everything.edges), vertices.longest))
        found = ChunkSizes(
            vertices=vertices.longest,
            targets=of_targets.longest,
            edges=max(_largest(each) for each in edges),
            edge_rows=max(most_rows, *(_largest(each) for each in rows)),
        )
        return cls(vertices, sources, of_targets, everything, into, found)


def _largest(counts: NDArray[np.int64]) -> int:
    """The most of all chunks; 0 where there are none."""
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
    """Cut a graph into as few intervals as fit (NeuGraph, section 3.1).

    Where that takes many, it is a number that fits while one less does not: a few less still may, if their
    borders happen to lie better.

    Parameters
    ----------
    topology, targets, hidden, remote
        The parameters of `ChunkGrid.of`.
    needs
        The bytes that a device takes for chunks of such sizes; more for larger ones.
    budget_bytes
        The most that it may take.
    first
        The least number of intervals to try.
    device
        Its name, for messages.

    Raises
    ------
    DeviceOutOfMemory
        If chunks of single vertices take more, or as many chunks as there may be.
    """
    num_vertices = topology.num_vertices - sum(remote)
    # In-degrees may count edges that other processes have.
    num_edges = int((topology.indptr[targets + 1] - topology.indptr[targets]).sum(dtype=np.int64))
    most_edges = topology.num_edges if hidden else num_edges

    def bound(num: int) -> int:
        """What any grid of so many intervals takes at least: as if all chunks were equal."""
        longest = -(-num_vertices // num)
        of_targets = max(1, -(-len(targets) // longest))
        sources = num + sum(-(-count // longest) for count in remote)
        edges = -(-most_edges // (num * sources)) if hidden else -(-num_edges // (sources * of_targets))
        rows = min(edges, 1)
        short = -(-len(targets) // of_targets)
        return needs(ChunkSizes(vertices=longest, targets=short, edges=edges, edge_rows=rows))

    grid: ChunkGrid | None = None

    def taken(num: int) -> int:
        """What a grid takes; the last one that fits is kept."""
        nonlocal grid
        made = ChunkGrid.of(topology, targets, num, hidden=hidden, remote=remote)
        needed = needs(made.sizes)
        if needed <= budget_bytes:
            grid = made
        return needed

    most = most_intervals(num_vertices)
    try:
        least_number(bound, taken, budget_bytes, first=first, most=most)
    except NoneFits as none:
        raise exhausted(none.needed, budget_bytes, device, None if most == num_vertices else most) from None
    assert grid is not None
    return grid


def most_intervals(rows: int) -> int:
    """Into how many intervals rows are cut at the most."""
    return min(rows, MOST_PARTS)


def asked_too_few(device: str, num: int, needed: int, free: int) -> DeviceOutOfMemory:
    """The error where as many chunks as were asked for do not fit; sizes are in bytes."""
    return DeviceOutOfMemory(
        f"{device}: chunks of {num} intervals take {size(needed)}, and {size(free)} are free for them",
        remedy="raise fullgraph.chunks or fullgraph.device_memory, or leave fullgraph.chunks at 0",
    )


def exhausted(
    needed: int, budget: int, device: str = "a device", intervals: int | None = None
) -> DeviceOutOfMemory:
    """The error where no chunks fit; sizes are in bytes.

    `intervals` is into how many the vertices were cut at the most, where that is not one for each.
    """
    chunks = "chunks of single vertices" if intervals is None else f"{intervals:,} x {intervals:,} chunks"
    return DeviceOutOfMemory(
        f"even {chunks} take {size(needed)} of {device}, which has {size(budget)} for them",
        remedy="raise fullgraph.device_memory, or lower model.hidden",
    )
