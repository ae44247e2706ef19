"""Settings of LABOR sampling, with derived sizes and estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.section import NotBool

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler


class LaborSettings(SamplerSettings):
    """LABOR sampling: `fanout` neighbours per vertex, which vertices share if possible."""

    iterations: Annotated[int, Field(ge=0, le=20), NotBool] = 0
    """The number of rounds that compute the importance of sources. With 0 (LABOR-0), every source has one
    random number per layer, and each vertex keeps the `fanout` neighbours with the smallest numbers. With 1
    or more (LABOR-1 and so on), fewer rows are read, along more edges, which have weights; the neighbours of
    a whole step are then sampled together."""

    @property
    def draws_whole_steps(self) -> bool:
        return self.iterations > 0

    def describe(self, layers: int, batch_size: int) -> str:
        fanouts = ",".join(map(str, self.fanouts(layers)))
        return f"LABOR-{self.iterations} fan-out {fanouts} · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.sampler_sizes import expected_labor_sizes

        return expected_labor_sizes(degrees, self.fanouts(layers), units, iterations=self.iterations)

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        found = super().batch_sizes(batch, units)
        read = sum(float(block.degrees.sum(dtype="int64")) for block in batch.blocks)
        return replace(found, walk_steps=sum(found.edges), scanned_edges=read * (1 + 4 * self.iterations))

    def persistent_bytes(self, num_vertices: float, num_edges: float) -> float:
        return 16.0 * num_vertices if self.iterations else 0.0

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
        from hyrt.sampling.sampler import check_graph

        graph, fanouts = check_graph(graph), self.fanouts(layers)
        if self.iterations == 0:
            from hyrt.sampling.layer_samplers import LaborLayerSampler
            from hyrt.sampling.layered_sampler import LayeredSampler

            labor = LaborLayerSampler(graph.topology, fanouts[::-1], seed)
            return LayeredSampler(graph, targets, layers, labor, batch_size, seed, class_weights)
        import numpy as np

        from hyrt.sampling.layer_samplers import LaborImportanceSampler
        from hyrt.sampling.layered_sampler import StepSampler

        num = graph.num_vertices
        draw = LaborImportanceSampler(
            graph, fanouts[::-1], seed, self.iterations, np.ones(num), np.zeros(num)
        )
        return StepSampler(graph, targets, layers, draw, batch_size, seed, class_weights)
