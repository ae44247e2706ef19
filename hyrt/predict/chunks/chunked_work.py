"""What training a whole graph in chunks asks of a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyrt_perfmodel.chunks.chunk_costs import GatheringLayer
from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.errors import UnsupportedModel
from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.fullgraph.grid.place_sizes import PlaceSizes
from hyrt.nn.description import ModelDescription, describe
from hyrt.predict.bare_model import bare_model

_FLOAT_BYTES = _INT_BYTES = 4
# Searching P one by one, a simulation of as many chunks squared takes too long beyond this.
_MOST_INTERVALS = 256


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
            layers=_layers(step, targets / vertices, keeps_first=config.model.input_dropout == 0),
            vertices=vertices,
            edges=edges,
            targets=targets,
            target_edges=edges * targets / vertices if work.target_edges is None else work.target_edges,
            degrees=work.degrees
            or DegreeDistribution.assumed(vertices, edges, reciprocity=float(not work.transpose_bytes)),
            is_symmetric=not work.transpose_bytes,
        )

    def least_intervals(self, budget_bytes: float, in_flight: int) -> int | None:
        """The least P whose chunks fit a device if they are all alike; None where none do."""
        weights = sum(product.weight.numel() for layer in self.model.layers for product in layer.products)
        for num in range(1, min(_MOST_INTERVALS, self.vertices) + 1):
            interval, count = math.ceil(self.vertices / num), math.ceil(self.edges / num**2)
            places = PlaceSizes.of(
                self.model,
                ChunkSizes(
                    vertices=interval,
                    targets=min(interval, math.ceil(self.targets)),
                    edges=count,
                    edge_rows=min(interval, count),
                ),
            )
            of_edges = _INT_BYTES * (2 * places.edge_rows + 1 + places.edges)
            of_edges += 2 * _FLOAT_BYTES * places.vertices
            needed = in_flight * (_FLOAT_BYTES * places.read + of_edges)
            needed += _FLOAT_BYTES * (places.accumulated + sum(places.results) + 2 * weights)
            if needed <= budget_bytes:
                return num
        return None


def _layers(step: Workload, share: float, *, keeps_first: bool) -> tuple[GatheringLayer, ...]:
    last = step.layers
    return tuple(
        GatheringLayer(
            gathered=step.features[layer - 1],
            out=step.features[layer],
            gathers_back=layer > 1,
            kept=layer == 1 and keeps_first and last > 1,
            at=share if layer == last else 1.0,
        )
        for layer in range(1, last + 1)
    )
