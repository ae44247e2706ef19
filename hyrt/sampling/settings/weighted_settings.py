"""Settings of weighted neighbour sampling, with derived sizes and estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hyrt.errors import ConfigError
from hyrt.sampling.sampler_settings import SamplerSettings

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.layered_sampler import LayeredSampler
    from hyrt.sampling.minibatch import MiniBatch


class WeightedSettings(SamplerSettings):
    """Sampling of `fanout` neighbours per vertex by edge weight (`edge_weight` in the data)."""

    replacement: bool = False
    """Whether to sample with replacement, so that the same edge may be sampled several times."""
    scale_weights: bool = True
    """Whether the factors of each vertex's sampled edges are scaled so that factors times weights add up to
    the sum of the weights of all its edges. This reduces the noise of sums and gives them a small bias."""

    @property
    def reads_edge_weights(self) -> bool:
        return True

    def describe(self, layers: int, batch_size: int) -> str:
        fanouts = ",".join(map(str, self.fanouts(layers)))
        return f"fan-out {fanouts} by weight{', with replacement' * self.replacement} · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        """Return the sizes of neighbour sampling, since edge weights are assumed to be nearly equal."""
        from hyrt_perfmodel.expected_sizes import expected_sizes

        return expected_sizes(degrees, self.fanouts(layers), units)

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        found = super().batch_sizes(batch, units)
        read = sum(float(block.degrees.sum(dtype="int64")) for block in batch.blocks)
        return replace(found, walk_steps=sum(found.edges), scanned_edges=read)

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> LayeredSampler:
        from hyrt.sampling.layer_samplers import WeightedLayerSampler
        from hyrt.sampling.layered_sampler import LayeredSampler

        if graph.topology.edge_weights is None:
            raise ConfigError(
                f"sampler.kind=weighted needs edge weights, but {graph.name} has no key 'edge_weight': add "
                "it, or set sampler.kind=neighbor"
            )
        fanouts = self.fanouts(layers)[::-1]
        draw = WeightedLayerSampler(graph.topology, fanouts, self.replacement, self.scale_weights, seed)
        return LayeredSampler(graph, targets, layers, draw, batch_size, seed, class_weights)
