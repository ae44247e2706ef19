"""Edges of one rank, halo exchange of their source rows, and timings of the products."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.halo_exchange import HaloExchange, PendingGradients, PendingRows, broadcast_rows
from hyrt.distributed.process_group import RankGroup, all_gather_object
from hyrt.distributed.rank_grid import PartEdges
from hyrt.formatting import short_repr
from hyrt.fullgraph.plan import DestinationSubset
from hyrt.telemetry.events import Event, Notice, StepMetrics
from hyrt.telemetry.hooks import Hook


class HasEndTime(Protocol):
    """Handle of an asynchronous operation that has an end time."""

    @property
    def ended_at(self) -> float | None:
        """End time (`time.perf_counter`); None while the operation is running."""
        ...


@dataclass(slots=True)
class SpmmTimings:
    """Times in seconds, summed over the products (SpMM) of a rank."""

    compute_s: float = 0.0
    """Time spent on multiplying blocks."""
    communicate_s: float = 0.0
    """Time from the start of each product's exchanges to the end of the last one."""
    wait_s: float = 0.0
    """Time spent waiting for rows."""

    def start_product(self) -> SpmmClock:
        """Start the clock of another product."""
        return SpmmClock(self, time.perf_counter())

    def reset(self) -> None:
        self.compute_s = self.communicate_s = self.wait_s = 0.0

    @property
    def hidden_s(self) -> float:
        """Communication time that overlapped with computation.

        At least 0, although a wait may end slightly later than the exchange.
        """
        return max(0.0, self.communicate_s - self.wait_s)

    @property
    def hidden_fraction(self) -> float | None:
        """Hidden fraction of the smaller of compute and communication time; None unless both are positive."""
        shorter = min(self.compute_s, self.communicate_s)
        return None if shorter <= 0 else self.hidden_s / shorter


@dataclass(slots=True)
class SpmmClock:
    """Clock of one product."""

    timings: SpmmTimings
    started_at: float
    waited_s: float = 0.0

    def wait(self, until: Callable[[], None]) -> None:
        """Call a function that waits for other ranks, and add its duration to `wait_s`."""
        started = time.perf_counter()
        until()
        self.waited_s += time.perf_counter() - started

    def end(self, arrivals: Sequence[HasEndTime]) -> None:
        """Stop the clock and add the product's times to the totals."""
        now = time.perf_counter()
        last_end = max((arrival.ended_at or now for arrival in arrivals), default=self.started_at)
        self.timings.communicate_s += last_end - self.started_at
        self.timings.wait_s += self.waited_s
        self.timings.compute_s += now - self.started_at - self.waited_s


Array = NDArray[Any]

ROWS = "rows"
GRADIENTS = "row gradients"
SUMS = "partial sums"
"""Purpose of partial sums in the byte counters."""


@dataclass(frozen=True)
class LocalEdges:
    """Edges into the vertices of one rank, with the halo exchange and the replicas of its block."""

    edges: PartEdges
    exchange: HaloExchange
    replicas: RankGroup | None
    """Ranks that have the same block, in the order of the grid columns; None without replication."""
    timings: SpmmTimings = field(default_factory=SpmmTimings)

    __repr__ = short_repr

    @cached_property
    def local_destinations(self) -> DestinationSubset:
        """Local vertices, as gather destinations."""
        num, num_rows = self.edges.num_local, self.edges.num_rows
        positions = np.full(num_rows, -1, np.int32)
        positions[:num] = np.arange(num, dtype=np.int32)
        return DestinationSubset(np.arange(num), positions, None)

    def with_halo(self, matrix: Array) -> Array:
        """Add space for the halo rows to a matrix of local rows, [n, w] or [n + h, w]; return [n + h, w]."""
        if len(matrix) == self.edges.num_rows:
            return matrix
        padded = np.empty((self.edges.num_rows, matrix.shape[1]), matrix.dtype)
        padded[: len(matrix)] = matrix
        return padded

    def all_reduce_replicas(self, sums: Array) -> None:
        """Sum the contributions of all grid columns to this rank's rows [n, w], in place."""
        if self.replicas is None:
            return
        buffer = np.ascontiguousarray(sums)
        self.replicas.all_reduce(torch.from_numpy(buffer), SUMS)
        if buffer is not sums:
            sums[:] = buffer

    def sum_over_replicas(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor of any shape over the grid columns."""
        if self.replicas is None:
            return values
        buffer = values.detach().contiguous().clone()
        self.replicas.all_reduce(buffer, SUMS)
        return buffer

    def broadcast_gradients(self, gradients: Array) -> Array:
        """Return the gradients of local rows [n, w] at the replica that multiplies with these rows.

        All replicas get these gradients; the gradients of the other replicas are discarded.
        """
        if self.replicas is None:
            return gradients
        grid = self.edges.grid
        buffer = np.ascontiguousarray(gradients)
        broadcast_rows(buffer, grid.column_of(grid.row), self.replicas, SUMS)
        return buffer


@dataclass(frozen=True)
class ChunkHaloExchange:
    """`hyrt.fullgraph.chunk_kernels.RowExchange` of halo rows between layers.

    Only the propagation thread uses it.
    """

    local_edges: LocalEdges
    num_vertices: int
    """Number of vertices of the whole graph."""

    __repr__ = short_repr

    @property
    def vertices(self) -> Array:
        """Ids of the local and then the remote vertices, [n + h]."""
        return self.local_edges.edges.vertices

    @cached_property
    def rounds(self) -> Sequence[int]:
        """Number of remote rows that each exchange round receives."""
        return [stop - start for start, stop in pairwise(self.local_edges.edges.round_starts)]

    @property
    def is_replicated(self) -> bool:
        """Whether other ranks compute the same rows (1.5D replication)."""
        return self.local_edges.replicas is not None

    @property
    def multiplies_local(self) -> bool:
        """Whether this rank has the edges between its local vertices.

        With replication, only one rank of a block has these edges.
        """
        return self.local_edges.edges.grid.multiplies_local

    def reduce_sums(self, sums: Array) -> None:
        """Sum the gathered rows over the ranks that share this block (1.5D)."""
        self.local_edges.all_reduce_replicas(sums)

    def broadcast_gradients(self, gradients: Array) -> None:
        """Replace gradients of local rows by the gradients at the replica that multiplies with these rows."""
        shared = self.local_edges.broadcast_gradients(gradients)
        if shared is not gradients:
            gradients[:] = shared

    def begin(self, matrix: Array) -> _InboundChunkRows:
        """Start to fill the remote rows of a matrix [n + h, w]."""
        clock = self.local_edges.timings.start_product()
        return _InboundChunkRows(clock, self.local_edges.exchange.begin(matrix, ROWS))

    def begin_backward(self, matrix: Array) -> _OutboundChunkGradients:
        """Start to send the gradients of the remote rows of a matrix [n + h, w] to the owners of the rows."""
        clock = self.local_edges.timings.start_product()
        return _OutboundChunkGradients(clock, self.local_edges.exchange.begin_backward(matrix, GRADIENTS))


@dataclass(frozen=True, slots=True)
class _InboundChunkRows:
    """`hyrt.fullgraph.chunk_kernels.PendingHalo` of rows that are being received."""

    clock: SpmmClock
    arrivals: Sequence[PendingRows]

    @property
    def is_complete(self) -> bool:
        return all(arrival.ended_at is not None for arrival in self.arrivals)

    def wait(self) -> None:
        for arrival in self.arrivals:
            self.clock.wait(arrival.wait)
        self.clock.end(self.arrivals)


@dataclass(frozen=True, slots=True)
class _OutboundChunkGradients:
    """`hyrt.fullgraph.chunk_kernels.PendingHaloGradients` of gradients that are being sent."""

    clock: SpmmClock
    gradients: PendingGradients

    def send(self, round_index: int) -> None:
        self.gradients.send(round_index)

    def add(self, out: Array) -> None:
        self.clock.wait(lambda: self.gradients.add(out))
        self.clock.end([self.gradients])


class SpmmTimingsHook(Hook):
    """Hook that reports how much communication overlapped with the products.

    `group` belongs to the main thread of the run.
    """

    def __init__(self, local_edges: LocalEdges, group: RankGroup) -> None:
        self._spread = local_edges
        self._group = group
        self._is_warm = False

    def on_event(self, event: Event) -> None:
        """Reset the timings after the first step, which includes compilation and feature exchange."""
        if isinstance(event, StepMetrics) and not self._is_warm:
            self._is_warm = True
            self._spread.timings.reset()

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        """Add the timings of all ranks to the summary."""
        edges, times = self._spread.edges, self._spread.timings
        local = {
            "rows": edges.num_local,
            "remote_rows": edges.num_rows - edges.num_local,
            "edges": edges.topology.num_edges,
            "compute_s": times.compute_s,
            "communicate_s": times.communicate_s,
            "wait_s": times.wait_s,
        }
        all_ranks = all_gather_object(self._group, local)
        summary["products"] = all_ranks
        if times.hidden_fraction is None:
            return None
        waited = max(timings["wait_s"] for timings in all_ranks)
        return Notice(
            kind="info",
            text=(
                f"rank 0 spent {times.compute_s:.2f} s multiplying and {times.communicate_s:.2f} s "
                f"communicating, of which {times.hidden_s:.2f} s were hidden; the longest wait of a rank was "
                f"{waited:.2f} s"
            ),
        )
