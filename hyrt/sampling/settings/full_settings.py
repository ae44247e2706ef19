"""Settings of full-graph training, with derived sizes and estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hyrt.sampling.sampler_settings import SamplerSettings

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.full_sampler import FullSampler


class FullSettings(SamplerSettings):
    """Full-graph training: each step has the whole graph and exact gradients, each epoch has one step."""

    unit: ClassVar[str] = "whole graph"
    units_setting: ClassVar[str] = "the units of a full-graph step"
    smaller_unit: ClassVar[str] = "remove --full-graph"
    is_full_graph: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = frozenset({"hetero", "links", "split_edges"})

    def units_per_step(self, batch_size: int) -> int:
        return 1

    def units_per_epoch(self, num_targets: int) -> int:
        return 1

    def describe(self, layers: int, batch_size: int) -> str:
        return "full graph, one step per epoch"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.expected_sizes import BlockSizes

        vertices, edges = float(degrees.num_vertices), float(degrees.num_edges)
        return BlockSizes(vertices=(vertices,) * (layers + 1), edges=(edges,) * layers)

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> FullSampler:
        from hyrt.sampling.full_sampler import FullSampler

        return FullSampler(graph, targets, layers, seed, class_weights)
