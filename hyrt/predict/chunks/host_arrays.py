"""What stays on the host while chunks of a whole graph come and go, array by array."""

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

Array = NDArray[Any]
_INT = _FLOAT = 4
# Buffers that rows are filtered into.
_BUFFERS = 2
EDGES, USEFUL, FILTERED = "edges, chunk after chunk", "numbers of useful rows", "rows that are filtered"
BETWEEN, MOVED = "rows between two layers", "sums that come and go"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedEdges:
    """Edges in chunks, in one direction."""

    edges: int
    rows: int
    """Rows that have some, chunk by chunk."""
    chunks: int
    useful: int = 0
    """Rows that are copied for the chunks whose rows are filtered."""
    most_useful: int = 0
    """Those of the chunk that has most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """All edges that a step reads in chunks: along which it gathers, and takes gradients back."""

    into_targets: ChunkedEdges
    from_targets: ChunkedEdges
    """`into_targets` and `from_targets`: the last layer's, by target and by source."""
    into_all: ChunkedEdges
    from_all: ChunkedEdges
    """`into_all` and `from_all`: the other layers', by destination and by source."""


def expected_edges(work: ChunkedWork, degrees: DegreeDistribution, limits: Sequence[float]) -> EdgeArrays:
    """Chunks of a graph of which only the degrees are known, and whose targets are like all its vertices.

    Parameters
    ----------
    work
        The graph and its targets.
    degrees
        How many edges its vertices have.
    limits
        For each interval that is added to, the useful fraction below which rows are filtered.
    """
    num, mean_limit = len(limits), sum(limits) / len(limits)
    interval = work.vertices / num
    cuts = max(1, math.ceil(work.targets / math.ceil(interval)))
    owns = any(layer.aggregation.self_path != "none" for layer in work.model.layers)

    def touched(of_vertices: Array, part: float) -> float:
        """The fraction of vertices that have an edge where an edge goes with some probability."""
        shares = degrees.counts / degrees.counts.sum()
        return float((shares * (1 - (1 - part) ** of_vertices)).sum())

    def edges(
        count: float, rows: tuple[float, float, int], read: tuple[float, float, int], own: float, limit: float
    ) -> ChunkedEdges:
        """Rows and reads are the vertices of an interval, the fraction with edges, and how many intervals."""
        (added, filled, parts), (length, part, others) = rows, read
        useful = 1 - (1 - part) * (1 - own)
        is_filtered = useful < limit
        return ChunkedEdges(
            edges=round(count),
            rows=round(parts * others * added * filled),
            chunks=parts * others,
            useful=round(parts * others * length * useful) if is_filtered else 0,
            most_useful=math.ceil(_most(length, useful)) if is_filtered else 0,
        )

    share, several = work.targets / work.vertices, 1 / num
    aimed = touched(degrees.out_degrees, share / cuts)
    ins, outs = touched(degrees.in_degrees, several), touched(degrees.out_degrees, several)
    of_targets, all_rows = work.targets / cuts, work.vertices / num
    own = share / cuts if owns else 0.0
    return EdgeArrays(
        into_targets=edges(
            *(work.target_edges, (of_targets, ins, cuts), (all_rows, aimed, num)), own, mean_limit
        ),
        from_targets=edges(
            *(work.target_edges, (all_rows, aimed, num), (of_targets, ins, cuts)), several * owns, mean_limit
        ),
        into_all=edges(
            *(work.edges, (all_rows, ins, num), (all_rows, outs, num)), several * owns, mean_limit
        ),
        from_all=edges(
            *(work.edges, (all_rows, outs, num), (all_rows, ins, num)), several * owns, mean_limit
        ),
    )


def _most(length: float, part: float) -> float:
    """Rows of the chunk with most of them: three deviations more than the mean of independent rows."""
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
    """Bytes of the matrices that a step takes, by what each holds first: those of `ChunkedReplica`.

    Parameters
    ----------
    model
        The model.
    edges
        The edges in chunks.
    vertices, targets
        How many there are.
    is_symmetric
        Whether the edges by source are those by destination.
    order
        The order of the chunks.
    devices
        How many compute columns.
    """
    walk = _ChunkedWalk(model, MatrixPool(), vertices, targets, moves=order == "row-column")
    walk.prepare(edges, is_symmetric=is_symmetric, devices=devices)
    # What the first step leaves free is not what it began with.
    for first in (True, False):
        walk.step(first=first)
    return {name: int(taken) for name, taken in walk.pool.arrays.items() if taken}


@dataclass(slots=True)
class _ChunkedWalk:
    """Goes through a step: `hyrt.fullgraph.chunks.chunked_replica.ChunkedReplica`."""

    model: ModelDescription
    pool: MatrixPool
    vertices: int
    targets: int
    moves: bool
    into_all: list[PooledMatrix] = field(default_factory=list)

    def prepare(self, edges: EdgeArrays, *, is_symmetric: bool, devices: int) -> None:
        """Sort the edges into chunks."""
        last = len(self.model.layers) - 1
        chosen = [edges.into_targets, *([edges.from_targets] if last else [])]
        self._edges(chosen)
        if last:
            several = [edges.into_all, *([edges.from_all] if last > 1 and not is_symmetric else [])]
            self.into_all = self._edges(several)
            chosen += several
        widths = [max(given_width(layer), layer.products[0].weight.shape[1]) for layer in self.model.layers]
        for _ in range(_BUFFERS * devices):
            self.pool.take(FILTERED, max(each.most_useful for each in chosen), max(widths), _FLOAT)

    def step(self, *, first: bool) -> None:
        """One step, of which the first computes what the first layer gathers."""
        pool, last = self.pool, len(self.model.layers) - 1
        keeps = not self.model.input_dropout and last > 0
        rows: PooledMatrix | None = None
        gathered: list[PooledMatrix | None] = []
        for i in range(last):
            made = pool.take(BETWEEN, self.vertices, self._made(i), _FLOAT)
            if i or first or not keeps:
                gathered.append(pool.take(_what(i), self.vertices, self._gathered(i), _FLOAT))
            else:
                gathered.append(None)
            if i == 0 and first and keeps and last == 1:
                for matrix in self.into_all:
                    pool.give(matrix)
            if rows is not None:
                pool.give(rows)
            rows = made
        grad = self._gradient(last) if last else None
        if self.moves:
            pool.give(pool.take(MOVED, self.targets, self._gathered(last), _FLOAT))
        if rows is not None:
            pool.give(rows)
        for i in reversed(range(last)):
            if self.moves:
                pool.give(pool.take(MOVED, self.vertices, self._made(i), _FLOAT))
            assert grad is not None
            pool.give(grad)
            grad = gathered[i] if i else None
        if gathered and gathered[0] is not None and not keeps:
            pool.give(gathered[0])

    def _gradient(self, last: int) -> PooledMatrix:
        return self.pool.take(f"gradient of {_what(last)}", self.targets, self._gathered(last), _FLOAT)

    def _gathered(self, i: int) -> int:
        width: int = self.model.layers[i].products[0].weight.shape[1]
        return width

    def _made(self, i: int) -> int:
        width: int = self.model.layers[i].products[-1].weight.shape[0]
        return width

    def _edges(self, directions: Sequence[ChunkedEdges]) -> list[PooledMatrix]:
        """The arrays of `EdgeChunks` and of `UsefulRows`, in the order in which they are given back."""
        taken = [
            [
                self.pool.take(EDGES, each.rows, 1, _INT),
                self.pool.take(EDGES, each.rows + each.chunks, 1, _INT),
                self.pool.take(EDGES, each.edges, 1, _INT),
            ]
            for each in directions
        ]
        for mine, each in zip(taken, directions, strict=True):
            mine.append(self.pool.take(USEFUL, each.useful, 1, _INT))
        return [matrix for mine in taken for matrix in mine]


def _what(i: int) -> str:
    return f"what layer {i + 1} gathers"
