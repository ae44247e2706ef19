"""What training a whole graph in chunks asks of a machine."""

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
# A simulation of as many chunks squared takes too long beyond this.
MOST_SIMULATED = 256
_SCORE_MATRICES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedWork:
    """A model and the sizes of a graph, as chunks of it are computed."""

    model: ModelDescription
    layers: tuple[GatheringLayer, ...]
    """The layers: what the first gathers of features is kept, and the last is of the targets alone."""
    vertices: int
    edges: int
    targets: float
    target_edges: float
    """`vertices`, `edges`, `targets` and `target_edges`: of the graph, and edges into its targets."""
    degrees: DegreeDistribution
    """How many edges vertices have, or are taken to have."""
    is_symmetric: bool
    """Whether the edges by source are those by destination."""
    counts: Callable[[int], tuple[GridSizes, GridSizes]] | None = None
    """Counts the chunks in so many intervals, and those of the targets; None where the graph is not open."""

    @classmethod
    def of(cls, work: TrainingWorkload, config: Config, device: str) -> ChunkedWork | None:
        """That of a run; None where its model is none that is trained in chunks.

        Parameters
        ----------
        work, config
            The run's.
        device
            A kind of device, for messages.
        """
        step = work.at(float(work.batch_size))
        try:
            described = describe(bare_model(config, step.features[0], step.features[-1]), device)
        except UnsupportedModel:
            return None
        # Expected sizes are whole numbers but for their rounding.
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
        """The chunks in so many intervals, and those of the edges into the targets: counted, or expected."""
        if self.counts is not None:
            return self.counts(num)
        num = min(num, self.vertices)
        return expected_grid(self.degrees, num), expected_target_grid(
            self.degrees, num, self.targets, self.target_edges
        )

    def least_intervals(self, budget_bytes: float, in_flight: int, *, is_host: bool = False) -> int | None:
        """The least P whose chunks fit a device, found as a run finds it; None where none do. Unless they are
        counted, they are alike.

        Parameters
        ----------
        budget_bytes
            What there is for chunks.
        in_flight
            Chunks on the device at once.
        is_host
            Whether the CPU computes, by operators that make rows of scores beside.
        """
        if math.isinf(budget_bytes):
            return 1
        weights = sum(product.weight.numel() for layer in self.model.layers for product in layer.products)
        scored = self.model.layers[-1].products[-1].weight.shape[0] if is_host else 0

        def alike(num: int) -> int:
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

        needs = alike if self.counts is None else counted
        most = min(MOST_SIMULATED, self.vertices)
        try:
            return least_number(alike, needs, math.floor(budget_bytes), first=1, most=most)
        except NoneFits:
            return None

    def _largest(self, num: int) -> ChunkSizes:
        """The largest counted chunks, as `ChunkGrid` has them."""
        every, into = self.grids(num)
        read = (every, into) if len(self.layers) > 1 else (into,)
        edges = max(int(each.edges.max()) for each in read)
        rows = max(int(max(each.destinations.max(), min(each.edges.max(), each.rows.max()))) for each in read)
        return ChunkSizes(
            vertices=int(every.rows.max()), targets=int(into.rows_into.max()), edges=edges, edge_rows=rows
        )

    def _needed_bytes(self, chunks: ChunkSizes, in_flight: int, weights: int, scored: int) -> int:
        places = PlaceSizes.of(self.model, chunks)
        of_edges = _INT_BYTES * (2 * places.edge_rows + 1 + places.edges)
        of_edges += 2 * _FLOAT_BYTES * places.vertices
        needed = in_flight * (_FLOAT_BYTES * places.read + of_edges)
        needed += _FLOAT_BYTES * (places.accumulated + sum(places.results) + 2 * weights)
        # Scores with their loss, and what autograd makes beside.
        return needed + _FLOAT_BYTES * chunks.targets * (_SCORE_MATRICES * scored + 4 * bool(scored))


def gathering_layers(model: ModelDescription) -> tuple[GatheringLayer, ...]:
    """The layers of a model, as chunks of it are computed."""
    last = len(model.layers) - 1
    return tuple(
        GatheringLayer(
            gathered=given_width(layer),
            out=layer.products[-1].weight.shape[0],
            gathers_back=i > 0,
            kept=i == 0 and not model.input_dropout and last > 0,
            shapes=tuple((each.weight.shape[1], each.weight.shape[0]) for each in layer.products),
            reads_own=layer.aggregation.self_path != "none",
            scales_sources=layer.aggregation.reduce == "gcn",
            drops=layer.dropout > 0,
            drops_read=i == 0 and model.input_dropout > 0,
        )
        for i, layer in enumerate(model.layers)
    )
