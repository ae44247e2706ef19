"""Settings of GraphSAINT sampling with random walks, with derived sizes and estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.section import Count

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.saint_sampler import SaintSampler


_COUNT_BYTES = 4


class SaintSettings(SamplerSettings):
    """GraphSAINT: each step trains on a fixed number of subgraphs that random walks visit."""

    unit: ClassVar[str] = "subgraph"
    units_setting: ClassVar[str] = "sampler.units"
    smaller_unit: ClassVar[str] = "lower sampler.roots or sampler.walk_length"
    preparation: ClassVar[str] = (
        "counting the vertices and edges of random walks, for GraphSAINT's normalisation ..."
    )

    roots: Count = 2000
    """The number of random walks that form one subgraph."""
    walk_length: Count = 2
    """The number of steps of each walk."""
    units: Count = 1
    """The number of subgraphs per step, which replaces `data.batch_size`. One device trains a whole subgraph,
    so set at least the number of devices."""

    def units_per_step(self, batch_size: int) -> int:
        return self.units

    def describe(self, layers: int, batch_size: int) -> str:
        return f"GraphSAINT {self.units} x {self.roots} walks of {self.walk_length}"

    def units_per_epoch(self, num_targets: int) -> int:
        """Return the units per epoch, in whole steps: there are as many walk steps as targets."""
        return -(-num_targets // (self.roots * self.walk_length * self.units)) * self.units

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.sampler_sizes import expected_subgraphs

        return expected_subgraphs(
            degrees, layers=layers, roots=self.roots, walk_length=self.walk_length, subgraphs=units
        )

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        return replace(
            super().batch_sizes(batch, units),
            walk_steps=float(units * self.roots * (self.walk_length + 1)),
            scanned_edges=float(batch.blocks[0].degrees.sum()),
        )

    def persistent_bytes(self, num_vertices: float, num_edges: float) -> float:
        return _COUNT_BYTES * (num_vertices + num_edges)

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> SaintSampler:
        from hyrt.runtime.hardware import available_cores
        from hyrt.runtime.workers import Workers
        from hyrt.sampling.saint_sampler import SaintSampler

        with Workers(available_cores(), "hyrt.presample") as team:
            return SaintSampler(
                graph,
                targets,
                layers,
                self.roots,
                self.walk_length,
                self.units,
                seed,
                class_weights=class_weights,
                workers=team,
            )
