"""Settings of Cluster-GCN sampling, with derived sizes and estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hyrt.errors import ConfigError
from hyrt.formatting import pluralize
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.section import Count

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.cluster_sampler import ClusterSampler
    from hyrt.sampling.minibatch import MiniBatch


class ClusterSettings(SamplerSettings):
    """Cluster-GCN: parts of the graph with few edges between parts. A unit is a group of parts."""

    unit: ClassVar[str] = "group of parts"
    units_setting: ClassVar[str] = "sampler.groups"
    smaller_unit: ClassVar[str] = "raise sampler.parts or lower sampler.parts_per_group"
    preparation: ClassVar[str] = "dividing the graph into parts, for Cluster-GCN ..."

    parts: Count = 100
    """The number of graph parts."""
    parts_per_group: Count = 2
    """The number of parts whose vertices and edges form one subgraph; parts are grouped at random in each
    epoch."""
    groups: Count = 1
    """The number of subgraphs per step, which replaces `data.batch_size`. One device trains a whole subgraph,
    so set at least the number of devices."""
    method: Literal["metis", "volume", "block", "random"] = "metis"
    """The partitioning method, as for `hyrt partition --method`. `metis` and `volume` need
    `pip install "hyrt[partition]"`."""

    def units_per_step(self, batch_size: int) -> int:
        return self.groups

    def describe(self, layers: int, batch_size: int) -> str:
        return f"Cluster-GCN {self.groups} x {self.parts_per_group} of {self.parts} parts by {self.method}"

    def units_per_epoch(self, num_targets: int) -> int:
        """Return the number of groups per epoch if every part has training vertices."""
        return -(-min(self.parts, max(num_targets, 1)) // self.parts_per_group)

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.expected_sizes import BlockSizes

        share = min(self.parts_per_group / self.parts, 1.0)
        # In a random partition, the probability that an edge is inside a group is the group's share of the
        # graph. METIS is assumed to cut half of the edges.
        inside = max(share, 0.5) if self.method in ("metis", "volume") else share
        vertices, edges = (units * share * count for count in (degrees.num_vertices, degrees.num_edges))
        targets = units * share * num_targets
        part = targets / max(vertices, 1e-300)
        return BlockSizes(
            vertices=(*[vertices] * layers, targets),
            edges=(*[edges * inside] * (layers - 1), edges * inside * part),
            walk_steps=vertices,
            scanned_edges=2 * edges,
        )

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        found, block = super().batch_sizes(batch, units), batch.blocks[0]
        read = 2.0 * float(block.degrees.sum(dtype="int64"))
        return replace(found, walk_steps=found.vertices[0], scanned_edges=read)

    def persistent_bytes(self, num_vertices: float, num_edges: float) -> float:
        return 9.0 * num_vertices

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> ClusterSampler:
        import numpy as np

        from hyrt.graph.partition.registry import get_partition_method
        from hyrt.sampling.cluster_sampler import ClusterSampler
        from hyrt.sampling.sampler import check_sampler

        graph, targets = check_sampler(graph, targets, seed, class_weights)
        if self.parts > graph.num_vertices:
            raise ConfigError(
                f"sampler.parts={self.parts} exceeds the "
                f"{pluralize(graph.num_vertices, 'vertex', 'vertices')} of {graph.name}: lower sampler.parts"
            )
        training = np.zeros(graph.num_vertices, np.bool_)
        training[targets] = True
        homes = get_partition_method(self.method).homes(graph.topology, training, self.parts, seed)
        arguments = (homes, self.parts_per_group, self.groups, seed, class_weights)
        return ClusterSampler(graph, targets, layers, *arguments)
