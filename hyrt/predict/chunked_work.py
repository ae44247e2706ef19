"""Work of full-graph training in chunks: layers, chunk counts, and arrays on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hyrt_perfmodel.chunk_costs import GridSizes, expected_grid, expected_target_grid
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.workload import GatherLayer, TrainingWorkload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.errors import UnsupportedModelError
from hyrt.fullgraph.chunk_grid import (
    BufferSizes,
    ChunkSizes,
    NoFeasibleSizeError,
    count_chunks,
    input_width,
    smallest_feasible,
)
from hyrt.fullgraph.intervals import ChunkOrder, Intervals
from hyrt.graph.topology import Topology
from hyrt.nn.description import ModelDescription, describe
from hyrt.predict.step_dry_run import MatrixPoolModel, PooledMatrix, meta_model

Array = NDArray[Any]


def count_graph_chunks(topology: Topology, targets: Array, parts: int) -> tuple[GridSizes, GridSizes]:
    """Return the chunk sizes for all edges, and for the edges into the targets [n].

    `parts` is the number of intervals, P, at most the number of vertices. The intervals are those of
    `hyrt.fullgraph.chunk_grid.ChunkGrid`.
    """
    vertices = Intervals(topology.num_vertices, min(parts, topology.num_vertices))
    target_intervals = Intervals(len(targets), -(-len(targets) // max(1, vertices.longest)))
    sorted_targets = np.sort(targets)
    return _sizes(topology, vertices, vertices, None), _sizes(
        topology, target_intervals, vertices, sorted_targets
    )


def _sizes(topology: Topology, into: Intervals, sources: Intervals, chosen: Array | None) -> GridSizes:
    counts = count_chunks(topology.indptr, topology.indices, into, sources, chosen)
    starts, rows = sources.starts, np.diff(sources.starts).astype(np.float64)
    if chosen is None and topology.is_symmetric:
        # In a symmetric graph, each vertex with edges into an interval also has edges from it.
        return GridSizes(
            rows=rows,
            edges=counts.edges.T.astype(np.float64),
            sources=counts.rows.astype(np.float64),
            destinations=counts.rows.T.astype(np.float64),
        )
    touched = np.zeros((sources.num, into.num))
    for column in range(into.num):
        read = np.zeros(topology.num_vertices, np.bool_)
        read[_sources(topology, chosen, *into.range(column))] = True
        touched[:, column] = np.add.reduceat(read, starts[:-1], dtype=np.int64)
    in_both = None
    if chosen is not None:
        inside = [np.diff(np.searchsorted(chosen[slice(*into.range(q))], starts)) for q in range(into.num)]
        in_both = np.array(inside, np.float64).reshape(into.num, sources.num).T
    return GridSizes(
        rows=rows,
        edges=counts.edges.T.astype(np.float64),
        sources=touched,
        destinations=counts.rows.T.astype(np.float64),
        destination_rows=None if chosen is None else np.diff(into.starts).astype(np.float64),
        shared_rows=in_both,
    )


def _sources(topology: Topology, chosen: Array | None, first: int, last: int) -> Array:
    """Return the sources of all edges into a range of destinations, or into the chosen ones."""
    if chosen is None:
        edges: Array = topology.indices[topology.indptr[first] : topology.indptr[last]]
        return edges
    vertices = chosen[first:last]
    begins, counts = topology.indptr[vertices], topology.indptr[vertices + 1] - topology.indptr[vertices]
    ends = np.cumsum(counts)
    indices = np.repeat(begins - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
    sources: Array = topology.indices[indices]
    return sources


_FLOAT_BYTES = _INT_BYTES = 4
# Maximum number of intervals to simulate: the time of a simulation grows with its square.
MAX_SIMULATED = 256
_SCORE_MATRICES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedWork:
    """Model layers and graph sizes from which training in chunks is predicted."""

    model: ModelDescription
    layers: tuple[GatherLayer, ...]
    """Layers of the model: the first caches its gathered features, the last computes only the targets."""
    vertices: int
    edges: int
    targets: float
    target_edges: float
    """Number of edges into the targets."""
    degrees: DegreeDistribution
    """Counted or assumed degree distribution."""
    is_symmetric: bool
    """Whether each edge has a reverse edge, so that one array contains the edges in both directions."""
    counts: Callable[[int], tuple[GridSizes, GridSizes]] | None = None
    """Function that counts the chunks of all edges and targets' edges for P; None if no graph is open."""

    @classmethod
    def from_config(cls, work: TrainingWorkload, config: Config, device: str) -> ChunkedWork | None:
        """Return the work of a run, or None if its model is not trained in chunks. Messages name `device`."""
        step = work.at(float(work.batch_size))
        try:
            described = describe(meta_model(config, step.features[0], step.features[-1]), device)
        except UnsupportedModelError:
            return None
        # Round the sizes: expected sizes are whole numbers except for rounding errors.
        vertices, edges = round(step.vertices[0]), round(step.edges[0])
        targets = float(work.targets or vertices)
        return cls(
            model=described,
            layers=gathering_layers(described),
            vertices=vertices,
            edges=edges,
            targets=targets,
            target_edges=edges * targets / vertices if work.target_edges is None else work.target_edges,
            degrees=work.degrees
            or DegreeDistribution.assumed(vertices, edges, reciprocity=float(not work.transpose_bytes)),
            is_symmetric=not work.transpose_bytes,
            counts=work.chunk_counts,
        )

    def grids(self, num: int) -> tuple[GridSizes, GridSizes]:
        """Return the counted or expected chunks of all edges and of the targets' edges for P = `num`."""
        if self.counts is not None:
            return self.counts(num)
        num = min(num, self.vertices)
        return expected_grid(self.degrees, num), expected_target_grid(
            self.degrees, num, self.targets, self.target_edges
        )

    def min_intervals(self, budget_bytes: float, in_flight: int, *, is_host: bool = False) -> int | None:
        """Return the smallest P whose chunks fit in `budget_bytes`, as a run does, or None.

        Chunks are counted if possible, and otherwise assumed to have equal sizes. `in_flight` is the number
        of chunks on the device at once. With `is_host`, the CPU needs more score matrices.
        """
        if math.isinf(budget_bytes):
            return 1
        weights = sum(product.weight.numel() for layer in self.model.layers for product in layer.products)
        scored = self.model.layers[-1].products[-1].weight.shape[0] if is_host else 0

        def uniform(num: int) -> int:
            interval, count = math.ceil(self.vertices / num), math.ceil(self.edges / num**2)
            chunks = ChunkSizes(
                vertices=interval,
                targets=min(interval, math.ceil(self.targets)),
                edges=count,
                edge_rows=min(interval, count),
            )
            return self._needed_bytes(chunks, in_flight, weights, scored)

        def counted(num: int) -> int:
            return self._needed_bytes(self._largest(num), in_flight, weights, scored)

        needs = uniform if self.counts is None else counted
        max_intervals = min(MAX_SIMULATED, self.vertices)
        try:
            return smallest_feasible(
                uniform, needs, math.floor(budget_bytes), minimum=1, maximum=max_intervals
            )
        except NoFeasibleSizeError:
            return None

    def _largest(self, num: int) -> ChunkSizes:
        """Return the sizes of the largest chunks, counted as in `ChunkGrid`."""
        grid, target_grid = self.grids(num)
        read = (grid, target_grid) if len(self.layers) > 1 else (target_grid,)
        edges = max(int(entry.edges.max()) for entry in read)
        rows = max(
            int(max(entry.destinations.max(), min(entry.edges.max(), entry.rows.max()))) for entry in read
        )
        return ChunkSizes(
            vertices=int(grid.rows.max()),
            targets=int(target_grid.rows_into.max()),
            edges=edges,
            edge_rows=rows,
        )

    def _needed_bytes(self, chunks: ChunkSizes, in_flight: int, weights: int, scored: int) -> int:
        buffers = BufferSizes.from_model(self.model, chunks)
        edge_bytes = _INT_BYTES * (2 * buffers.edge_rows + 1 + buffers.edges)
        edge_bytes += 2 * _FLOAT_BYTES * buffers.vertices
        needed = in_flight * (_FLOAT_BYTES * buffers.read + edge_bytes)
        needed += _FLOAT_BYTES * (buffers.accumulated + sum(buffers.results) + 2 * weights)
        # Add the scores, their losses, and the temporary matrices of autograd.
        return needed + _FLOAT_BYTES * chunks.targets * (_SCORE_MATRICES * scored + 4 * bool(scored))


def gathering_layers(model: ModelDescription) -> tuple[GatherLayer, ...]:
    """Return the layers of a model in the form for chunks."""
    last = len(model.layers) - 1
    return tuple(
        GatherLayer(
            gather_width=input_width(layer),
            out_width=layer.products[-1].weight.shape[0],
            has_input_grad=i > 0,
            is_cached=i == 0 and not model.input_dropout and last > 0,
            shapes=tuple((product.weight.shape[1], product.weight.shape[0]) for product in layer.products),
            reads_self=layer.aggregation.self_path != "none",
            scales_sources=layer.aggregation.reduce == "gcn",
            has_dropout=layer.dropout > 0,
            has_source_dropout=i == 0 and model.input_dropout > 0,
        )
        for i, layer in enumerate(model.layers)
    )


_INT = _FLOAT = 4
# Number of buffers for rows that the host filters.
_BUFFERS = 2
EDGES, USEFUL, FILTERED = "edges, chunk after chunk", "numbers of useful rows", "rows that are filtered"
BETWEEN, MOVED = "rows between two layers", "sums that come and go"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedEdges:
    """Edges in chunks, sorted in one direction."""

    edges: int
    rows: int
    """Number of rows with edges, summed over chunks."""
    chunks: int
    useful: int = 0
    """Number of rows that are copied for the chunks whose rows are filtered."""
    max_useful: int = 0
    """Maximum of `useful` in a single chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """Edges in chunks that a step reads for gathers and for gradients."""

    into_targets: ChunkedEdges
    from_targets: ChunkedEdges
    """Edges of the last layer sorted by source; `into_targets` contains the same edges by target."""
    into_all: ChunkedEdges
    from_all: ChunkedEdges
    """Edges of the other layers sorted by source; `into_all` contains the same edges by destination."""


def expected_edges(work: ChunkedWork, degrees: DegreeDistribution, limits: Sequence[float]) -> EdgeArrays:
    """Estimate the chunks of a graph from its degrees, assuming that targets are typical vertices.

    `limits` contains, per destination interval, the fraction of useful rows below which rows are filtered.
    """
    num, mean_limit = len(limits), sum(limits) / len(limits)
    interval = work.vertices / num
    cuts = max(1, math.ceil(work.targets / math.ceil(interval)))
    has_self_path = any(layer.aggregation.self_path != "none" for layer in work.model.layers)

    def touched(class_degrees: NDArray[Any], probability: float) -> float:
        """Return the fraction of vertices with edges to a set that holds an end point with `probability`."""
        shares = degrees.counts / degrees.counts.sum()
        return float((shares * (1 - (1 - probability) ** class_degrees)).sum())

    def edges(
        count: float,
        rows: tuple[float, float, int],
        read: tuple[float, float, int],
        self_fraction: float,
        limit: float,
    ) -> ChunkedEdges:
        """Return the chunks of written and read rows (interval size, fraction with edges, intervals)."""
        (added, filled, parts), (length, probability, others) = rows, read
        useful = 1 - (1 - probability) * (1 - self_fraction)
        is_filtered = useful < limit
        return ChunkedEdges(
            edges=round(count),
            rows=round(parts * others * added * filled),
            chunks=parts * others,
            useful=round(parts * others * length * useful) if is_filtered else 0,
            max_useful=math.ceil(_max_rows(length, useful)) if is_filtered else 0,
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
    """Return the rows of the largest chunk: the mean plus three standard deviations of independent rows."""
    return min(length, length * part + 3 * math.sqrt(length * part * (1 - part)))


def host_arrays(
    model: ModelDescription,
    edges: EdgeArrays,
    *,
    vertices: int,
    targets: int,
    is_symmetric: bool,
    order: ChunkOrder = "column-row",
    devices: int = 1,
) -> dict[str, int]:
    """Return the bytes of the matrices of a step in `ChunkedReplica`, by the name of their first content.

    With `is_symmetric`, edges by source and by destination are one array. `devices` share the columns.
    """
    walk = _ChunkedDryRun(model, MatrixPoolModel(), vertices, targets, moves=order == "row-column")
    walk.prepare(edges, is_symmetric=is_symmetric, devices=devices)
    # Simulate two steps, because buffers that the first step frees change the allocations of the second.
    for first in (True, False):
        walk.step(first=first)
    return {name: int(num_bytes) for name, num_bytes in walk.pool.arrays.items() if num_bytes}


@dataclass(slots=True)
class _ChunkedDryRun:
    """Dry run of training steps of `hyrt.fullgraph.chunked_replica.ChunkedReplica`."""

    model: ModelDescription
    pool: MatrixPoolModel
    vertices: int
    targets: int
    moves: bool
    into_all: list[PooledMatrix] = field(default_factory=list)

    def prepare(self, edges: EdgeArrays, *, is_symmetric: bool, devices: int) -> None:
        """Simulate the allocation of the edges, which are sorted into chunks."""
        last = len(self.model.layers) - 1
        directions = [edges.into_targets, *([edges.from_targets] if last else [])]
        self._edges(directions)
        if last:
            other_edges = [edges.into_all, *([edges.from_all] if last > 1 and not is_symmetric else [])]
            self.into_all = self._edges(other_edges)
            directions += other_edges
        widths = [max(input_width(layer), layer.products[0].weight.shape[1]) for layer in self.model.layers]
        for _ in range(_BUFFERS * devices):
            self.pool.take(
                FILTERED, max(direction.max_useful for direction in directions), max(widths), _FLOAT
            )

    def step(self, *, first: bool) -> None:
        """Simulate one step. The first step also computes the cached gather of the first layer."""
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
                    pool.release(matrix)
            if rows is not None:
                pool.release(rows)
            rows = results
        grad = self._gradient(last) if last else None
        if self.moves:
            pool.release(pool.take(MOVED, self.targets, self._gather_width(last), _FLOAT))
        if rows is not None:
            pool.release(rows)
        for i in reversed(range(last)):
            if self.moves:
                pool.release(pool.take(MOVED, self.vertices, self._result_width(i), _FLOAT))
            assert grad is not None
            pool.release(grad)
            grad = gathered[i] if i else None
        if gathered and gathered[0] is not None and not caches_first:
            pool.release(gathered[0])

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
        """Simulate the allocation of `EdgeChunks` and `SelectiveRows` in their order of release."""
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
