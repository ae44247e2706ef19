"""The settings of node-wise neighbour sampling, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hyrt.sampling.sampler_settings import SamplerSettings

if TYPE_CHECKING:
    from hyrt_perfmodel.sizes.degrees import DegreeDistribution
    from hyrt_perfmodel.sizes.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.neighbor import NeighborSampler


class NeighborSettings(SamplerSettings):
    """Node-wise sampling without replacement: `fanout` neighbours of each vertex, layer by layer."""

    on_device: bool = False
    """Let each trainer whose device can sample draw the neighbours of its own mini-batches. The sampled edges
    are the same."""

    degrees: Literal["full", "sampled"] = "full"
    """The degrees that GCN normalises by: `full`, those of the graph, so that sampled sums are unbiased; or
    `sampled`, at most the fan-out of the layer, which is biased, less noisy, and closer to what GCNs over
    sampled subgraphs do elsewhere. Evaluations use those of the graph."""

    def check(self, layers: int) -> None:
        super().check(layers)
        if self.degrees == "sampled" and self.on_device:
            raise ValueError(
                "sampler.degrees=sampled does not go with sampler.on_device=true: omit one of them"
            )

    @property
    def draws_on_device(self) -> bool:
        return self.on_device

    def describe(self, layers: int, batch_size: int) -> str:
        return f"fan-out {','.join(map(str, self.fanouts(layers)))} · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.sizes.expected_sizes import expected_sizes

        return expected_sizes(degrees, self.fanouts(layers), units)

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> NeighborSampler:
        from hyrt.errors import ConfigError
        from hyrt.sampling.neighbor import NeighborSampler

        if self.degrees == "sampled" and graph.topology.edge_weights is not None:
            raise ConfigError(
                f"{graph.name}: its edges have weights, whose sums are not those of numbers of neighbours: "
                "set sampler.degrees=full"
            )
        return NeighborSampler(
            graph,
            targets,
            self.fanouts(layers),
            batch_size,
            seed,
            class_weights=class_weights,
            sampled_degrees=self.degrees == "sampled",
        )
