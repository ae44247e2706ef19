"""Settings of ShaDow sampling of bounded subgraphs, with derived sizes and estimates."""

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
    from hyrt.sampling.shadow_sampler import ShadowSampler


_MAX_MEMBERS = 50_000


class ShadowSettings(SamplerSettings):
    """ShaDow: all layers run on a bounded subgraph around each target."""

    hops: Count = 2
    """The number of hops in a target's subgraph, for any number of layers."""
    hop_neighbors: Count = 10
    """The number of neighbours, sampled without replacement, that each vertex of a hop adds to the
    subgraph."""

    def check(self, layers: int) -> None:
        super().check(layers)
        members = sum(self.hop_neighbors**hop for hop in range(min(self.hops, 20) + 1))
        if members > _MAX_MEMBERS:
            raise ValueError(
                f"sampler.hops={self.hops} and sampler.hop_neighbors={self.hop_neighbors} allow subgraphs "
                f"of up to {members:,} vertices per target: lower one of them, to allow at most "
                f"{_MAX_MEMBERS:,}"
            )

    def describe(self, layers: int, batch_size: int) -> str:
        return f"ShaDow {self.hops} hops of {self.hop_neighbors} · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.expected_sizes import expected_bounded_subgraphs

        return expected_bounded_subgraphs(
            degrees, layers=layers, hops=self.hops, fanout=self.hop_neighbors, targets=units
        )

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        found, block = super().batch_sizes(batch, units), batch.blocks[0]
        read = 2.0 * float(block.degrees.sum(dtype="int64"))
        return replace(found, walk_steps=found.vertices[0], scanned_edges=read)

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> ShadowSampler:
        from hyrt.sampling.shadow_sampler import ShadowSampler

        scope = (self.hops, self.hop_neighbors)
        return ShadowSampler(graph, targets, layers, *scope, batch_size, seed, class_weights)
