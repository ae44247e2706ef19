"""Arrays that stay on the host while chunks of a full graph are streamed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from numpy.typing import NDArray

from hyrt.fullgraph.grid.place_sizes import given_width
from hyrt.fullgraph.grid.visits import Order
from hyrt.nn.description import ModelDescription
from hyrt.predict.chunks.chunked_work import ChunkedWork
from hyrt.predict.whole_graphs.matrix_pool import MatrixPool, PooledMatrix

_INT = _FLOAT = 4
# Number of buffers for filtered rows.
_BUFFERS = 2
EDGES, USEFUL, FILTERED = "edges, chunk after chunk", "numbers of useful rows", "rows that are filtered"
BETWEEN, MOVED = "rows between two layers", "sums that come and go"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedEdges:
    """Edges in chunks, in one direction."""

    edges: int
    rows: int
    """Rows with edges, summed over the chunks."""
    chunks: int
    useful: int = 0
    """Rows that are copied for chunks with filtered rows."""
    most_useful: int = 0
    """Maximum of such rows in one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """All edges that a step reads in chunks, for gathers and for gradients."""

    into_targets: ChunkedEdges
    from_targets: ChunkedEdges
    """`into_targets` and `from_targets`: edges of the last layer, by target and by source."""
    into_all: ChunkedEdges
    from_all: ChunkedEdges
    """`into_all` and `from_all`: edges of the other layers, by destination and by source."""


def expected_edges(work: ChunkedWork, degrees: DegreeDistribution, limits: Sequence[float]) -> EdgeArrays:
    """Estimate the chunks of a graph from its degrees; targets are assumed to be like all vertices.

    Parameters
    ----------
    work
        The graph and its targets.
    degrees
        Degrees of its vertices.
    limits
        Per destination interval, the useful fraction below which rows are filtered.
    """
    num, mean_limit = len(limits), sum(limits) / len(limits)
    interval = work.vertices / num
    cuts = max(1, math.ceil(work.targets / math.ceil(interval)))
    has_self_path = any(layer.aggregation.self_path != "none" for layer in work.model.layers)

    def touched(class_degrees: NDArray[Any], probability: float) -> float:
        """Return the fraction of vertices with an edge into a set that edges lead to with probability
        `part`.
        """
        shares = degrees.counts / degrees.counts.sum()
        return float((shares * (1 - (1 - probability) ** class_degrees)).sum())

    def edges(
        count: float,
        rows: tuple[float, float, int],
        read: tuple[float, float, int],
        self_fraction: float,
        limit: float,
    ) -> ChunkedEdges:
        """Combine rows and reads, each as (vertices of an interval, fraction with edges, number of
        intervals).
        """
        (added, filled, parts), (length, probability, others) = rows, read
        useful = 1 - (1 - probability) * (1 - self_fraction)
        is_filtered = useful < limit
        return ChunkedEdges(
            edges=round(count),
            rows=round(parts * others * added * filled),
            chunks=parts * others,
            useful=round(parts * others * length * useful) if is_filtered else 0,
            most_useful=math.ceil(_max_rows(length, useful)) if is_filtered else 0,
        )

    share, interval_share = work.targets / work.vertices, 1 / num
    sources_of_targets = touched(degrees.out_degrees, share / cuts)
    ins, outs = touched(degrees.in_degrees, interval_share), touched(degrees.out_degrees, interval_share)
    target_rows, all_rows = work.targets / cuts, work.vertices / num
    self_fraction = share / cuts if has_self_path else 0.0
    return EdgeArrays(
        into_targets=edges(
            *(work.target_edges, (target_rows, ins, cuts), (all_rows, sources_of_targets, num)),
            self_fraction,
            mean_limit,
        ),
        from_targets=edges(
            *(work.target_edges, (all_rows, sources_of_targets, num), (target_rows, ins, cuts)),
            interval_share * has_self_path,
            mean_limit,
        ),
        into_all=edges(
            *(work.edges, (all_rows, ins, num), (all_rows, outs, num)),
            interval_share * has_self_path,
            mean_limit,
        ),
        from_all=edges(
            *(work.edges, (all_rows, outs, num), (all_rows, ins, num)),
            interval_share * has_self_path,
            mean_limit,
        ),
    )


def _max_rows(length: float, part: float) -> float:
    """Return the rows of the largest chunk: three standard deviations above the mean of independent rows."""
    return min(length, length * part + 3 * math.sqrt(length * part * (1 - part)))


def host_arrays(
    model: ModelDescription,
    edges: EdgeArrays,
    *,
    vertices: int,
    targets: int,
    is_symmetric: bool,
    order: Order = "column-row",
    devices: int = 1,
) -> dict[str, int]:
    """Return the bytes of a step's matrices by the name of their first content, as in `ChunkedReplica`.

    Parameters
    ----------
    model
        The model.
    edges
        The edges in chunks.
    vertices, targets
        Number of vertices and of targets.
    is_symmetric
        Whether the edges by source are the edges by destination.
    order
        Order of the chunks.
    devices
        Number of devices that compute columns.
    """
    walk = _ChunkedDryRun(model, MatrixPool(), vertices, targets, moves=order == "row-column")
    walk.prepare(edges, is_symmetric=is_symmetric, devices=devices)
    # Buffers freed in the first step change the second step's allocations.
    for first in (True, False):
        walk.step(first=first)
    return {name: int(num_bytes) for name, num_bytes in walk.pool.arrays.items() if num_bytes}


@dataclass(slots=True)
class _ChunkedDryRun:
    """Dry run of a step of `hyrt.fullgraph.chunks.chunked_replica.ChunkedReplica`."""

    model: ModelDescription
    pool: MatrixPool
    vertices: int
    targets: int
    moves: bool
    into_all: list[PooledMatrix] = field(default_factory=list)

    def prepare(self, edges: EdgeArrays, *, is_symmetric: bool, devices: int) -> None:
        """Allocate the edges sorted into chunks."""
        last = len(self.model.layers) - 1
        directions = [edges.into_targets, *([edges.from_targets] if last else [])]
        self._edges(directions)
        if last:
            other_edges = [edges.into_all, *([edges.from_all] if last > 1 and not is_symmetric else [])]
            self.into_all = self._edges(other_edges)
            directions += other_edges
        widths = [max(given_width(layer), layer.products[0].weight.shape[1]) for layer in self.model.layers]
        for _ in range(_BUFFERS * devices):
            self.pool.take(
                FILTERED, max(direction.most_useful for direction in directions), max(widths), _FLOAT
            )

    def step(self, *, first: bool) -> None:
        """Simulate one step; the first step computes the cached gather of the first layer."""
        pool, last = self.pool, len(self.model.layers) - 1
        caches_first = not self.model.input_dropout and last > 0
        rows: PooledMatrix | None = None
        gathered: list[PooledMatrix | None] = []
        for i in range(last):
            results = pool.take(BETWEEN, self.vertices, self._result_width(i), _FLOAT)
            if i or first or not caches_first:
                gathered.append(pool.take(_gather_name(i), self.vertices, self._gather_width(i), _FLOAT))
            else:
                gathered.append(None)
            if i == 0 and first and caches_first and last == 1:
                for matrix in self.into_all:
                    pool.give(matrix)
            if rows is not None:
                pool.give(rows)
            rows = results
        grad = self._gradient(last) if last else None
        if self.moves:
            pool.give(pool.take(MOVED, self.targets, self._gather_width(last), _FLOAT))
        if rows is not None:
            pool.give(rows)
        for i in reversed(range(last)):
            if self.moves:
                pool.give(pool.take(MOVED, self.vertices, self._result_width(i), _FLOAT))
            assert grad is not None
            pool.give(grad)
            grad = gathered[i] if i else None
        if gathered and gathered[0] is not None and not caches_first:
            pool.give(gathered[0])

    def _gradient(self, last: int) -> PooledMatrix:
        return self.pool.take(
            f"gradient of {_gather_name(last)}", self.targets, self._gather_width(last), _FLOAT
        )

    def _gather_width(self, i: int) -> int:
        width: int = self.model.layers[i].products[0].weight.shape[1]
        return width

    def _result_width(self, i: int) -> int:
        width: int = self.model.layers[i].products[-1].weight.shape[0]
        return width

    def _edges(self, directions: Sequence[ChunkedEdges]) -> list[PooledMatrix]:
        """Allocate the arrays of `EdgeChunks` and `UsefulRows`, in the order in which they are released."""
        matrices = [
            [
                self.pool.take(EDGES, direction.rows, 1, _INT),
                self.pool.take(EDGES, direction.rows + direction.chunks, 1, _INT),
                self.pool.take(EDGES, direction.edges, 1, _INT),
            ]
            for direction in directions
        ]
        for arrays, direction in zip(matrices, directions, strict=True):
            arrays.append(self.pool.take(USEFUL, direction.useful, 1, _INT))
        return [matrix for arrays in matrices for matrix in arrays]


def _gather_name(i: int) -> str:
    return f"what layer {i + 1} gathers"
