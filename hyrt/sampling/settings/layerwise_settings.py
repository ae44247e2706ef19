"""Settings of layer-wise sampling, with derived sizes and estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.section import Count

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler


class FastGcnSettings(SamplerSettings):
    """FastGCN sampling: the sources of each layer are sampled from all vertices of the graph."""

    layer_size: Count = 512
    """The number of sources that are sampled for each layer, on average. Sampled sources without an edge to
    the layer's destinations are not read."""
    scale_weights: bool = False
    """Whether the weights of each vertex's sampled edges are scaled to add up to its degree, which reduces
    the noise of sums and gives them a small bias."""

    def describe(self, layers: int, batch_size: int) -> str:
        return f"FastGCN {self.layer_size} per layer · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.sampler_sizes import expected_layerwise_sizes

        return expected_layerwise_sizes(
            degrees, layers=layers, size=self.layer_size, targets=units, among_neighbors=False
        )

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        return add_scanned_edges(super().batch_sizes(batch, units), batch, 2)

    def persistent_bytes(self, num_vertices: float, num_edges: float) -> float:
        return 8.0 * num_vertices

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> Sampler:
        from hyrt.sampling.layer_samplers import FastGcnLayerSampler, column_probabilities
        from hyrt.sampling.layered_sampler import LayeredSampler
        from hyrt.sampling.sampler import check_graph

        graph = check_graph(graph)
        chances = column_probabilities(graph.topology, self.layer_size)
        draw = FastGcnLayerSampler(graph.topology, chances, self.scale_weights, seed)
        return LayeredSampler(graph, targets, layers, draw, batch_size, seed, class_weights)


class LadiesSettings(SamplerSettings):
    """LADIES sampling: the sources of each layer are sampled among the neighbours of its destinations."""

    layer_size: Count = 512
    """The number of sources that are sampled for each layer of a step, on average."""
    scale_weights: bool = True
    """Whether the weights of each vertex's sampled edges are scaled to add up to its degree, as in the paper,
    which reduces the noise of sums and gives them a small bias."""

    @property
    def draws_whole_steps(self) -> bool:
        return True

    def describe(self, layers: int, batch_size: int) -> str:
        return f"LADIES {self.layer_size} per layer · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.sampler_sizes import expected_layerwise_sizes

        return expected_layerwise_sizes(
            degrees, layers=layers, size=self.layer_size, targets=units, among_neighbors=True
        )

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        return add_scanned_edges(super().batch_sizes(batch, units), batch, 3)

    def persistent_bytes(self, num_vertices: float, num_edges: float) -> float:
        return 8.0 * num_vertices

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> Sampler:
        import numpy as np

        from hyrt.sampling.layer_samplers import LadiesLayerSampler
        from hyrt.sampling.layered_sampler import StepSampler
        from hyrt.sampling.sampler import check_graph

        graph = check_graph(graph)
        sums = np.zeros(graph.num_vertices)
        draw = LadiesLayerSampler(graph.topology, self.layer_size, self.scale_weights, seed, sums)
        return StepSampler(graph, targets, layers, draw, batch_size, seed, class_weights)


def add_scanned_edges(sizes: BlockSizes, batch: MiniBatch, passes: int) -> BlockSizes:
    """Add the edges that sampling reads to the sizes: all in-edges of each layer, read `passes` times."""
    read = sum(float(block.degrees.sum(dtype="int64")) for block in batch.blocks)
    return replace(sizes, walk_steps=sum(sizes.edges), scanned_edges=passes * read)
