"""Work of full-graph training in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hyrt_perfmodel.chunks.chunk_grid import GridSizes, expected_grid, expected_target_grid
from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.workloads.chunk_work import GatheringLayer
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.errors import UnsupportedModel
from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.fullgraph.grid.least_number import NoneFits, least_number
from hyrt.fullgraph.grid.place_sizes import PlaceSizes, given_width
from hyrt.nn.description import ModelDescription, describe
from hyrt.predict.bare_model import bare_model

_FLOAT_BYTES = _INT_BYTES = 4
# Maximum number of intervals to simulate: the time of a simulation grows with its square.
MOST_SIMULATED = 256
_SCORE_MATRICES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedWork:
    """A model and the sizes of a graph, for computation in chunks."""

    model: ModelDescription
    layers: tuple[GatheringLayer, ...]
    """Layers of the model: the first caches its gathered features, and the last is computed at the targets
    only."""
    vertices: int
    edges: int
    targets: float
    target_edges: float
    """`vertices`, `edges`, `targets` and `target_edges`: sizes of the graph, and edges into its targets."""
    degrees: DegreeDistribution
    """Counted or assumed degree distribution."""
    is_symmetric: bool
    """Whether the graph is symmetric, so that its edges by source are its edges by destination."""
    counts: Callable[[int], tuple[GridSizes, GridSizes]] | None = None
    """Function that counts the chunks for a number of intervals, and the chunks of the targets; None if the
    graph is not open."""

    @classmethod
    def of(cls, work: TrainingWorkload, config: Config, device: str) -> ChunkedWork | None:
        """Return the work of a run; None if its model is not trained in chunks.

        Parameters
        ----------
        work, config
            Work and settings of the run.
        device
            Kind of device, for messages.
        """
        step = work.at(float(work.batch_size))
        try:
            described = describe(bare_model(config, step.features[0], step.features[-1]), device)
        except UnsupportedModel:
            return None
        # Expected sizes are whole numbers except for rounding errors.
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
        """Return the chunks for a number of intervals, and those of the edges into the targets: counted or
        expected.
        """
        if self.counts is not None:
            return self.counts(num)
        num = min(num, self.vertices)
        return expected_grid(self.degrees, num), expected_target_grid(
            self.degrees, num, self.targets, self.target_edges
        )

    def least_intervals(self, budget_bytes: float, in_flight: int, *, is_host: bool = False) -> int | None:
        """Return the smallest P whose chunks fit a device, by the search that a run uses; None if there is
        none.

        Chunks are assumed to have equal sizes unless they can be counted.

        Parameters
        ----------
        budget_bytes
            Memory for chunks.
        in_flight
            Chunks on the device at once.
        is_host
            Whether the CPU computes, with operators that create additional score rows.
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
        max_intervals = min(MOST_SIMULATED, self.vertices)
        try:
            return least_number(uniform, needs, math.floor(budget_bytes), first=1, most=max_intervals)
        except NoneFits:
            return None

    def _largest(self, num: int) -> ChunkSizes:
        """Return the sizes of the largest counted chunks, as in `ChunkGrid`."""
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
        buffers = PlaceSizes.of(self.model, chunks)
        edge_bytes = _INT_BYTES * (2 * buffers.edge_rows + 1 + buffers.edges)
        edge_bytes += 2 * _FLOAT_BYTES * buffers.vertices
        needed = in_flight * (_FLOAT_BYTES * buffers.read + edge_bytes)
        needed += _FLOAT_BYTES * (buffers.accumulated + sum(buffers.results) + 2 * weights)
        # Scores with their loss, and temporary matrices of autograd.
        return needed + _FLOAT_BYTES * chunks.targets * (_SCORE_MATRICES * scored + 4 * bool(scored))


def gathering_layers(model: ModelDescription) -> tuple[GatheringLayer, ...]:
    """Return the layers of a model, for computation in chunks."""
    last = len(model.layers) - 1
    return tuple(
        GatheringLayer(
            gathered=given_width(layer),
            out=layer.products[-1].weight.shape[0],
            gathers_back=i > 0,
            kept=i == 0 and not model.input_dropout and last > 0,
            shapes=tuple((product.weight.shape[1], product.weight.shape[0]) for product in layer.products),
            reads_own=layer.aggregation.self_path != "none",
            scales_sources=layer.aggregation.reduce == "gcn",
            drops=layer.dropout > 0,
            drops_read=i == 0 and model.input_dropout > 0,
        )
        for i, layer in enumerate(model.layers)
    )
