"""Factory of a model's gather operations on the edges of all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hyrt.distributed.full_graph.chunk_travel import ChunkTravel
from hyrt.distributed.full_graph.gather_on_ranks import GatherOnRanks
from hyrt.distributed.full_graph.spread_edges import SpreadEdges
from hyrt.distributed.full_graph.sum_on_ranks import SumOnRanks
from hyrt.fullgraph.gathering import Gathering, Gathers, gathering_of
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.layer_parts import AttentionSum
from hyrt.nn.saga.gather import SagaSum
from hyrt.quantities import one_line


def adds_up(what: Gathers) -> bool:
    """Return whether partial results over disjoint sets of edges can be added."""
    if isinstance(what, SagaSum):
        # Every column would add the self-loop again.
        return what.program.accumulate in ("sum", "mean") and not what.loops
    return isinstance(what, Aggregation) and what.reduce != "max"


@dataclass(frozen=True)
class RankGatherings:
    """Creates gather operations; see `hyrt.sampling.full.whole_graph.Gatherings`."""

    spread: SpreadEdges
    """Edges of this rank."""
    num_vertices: int
    num_edges: int
    """`num_vertices` and `num_edges`: size of the whole graph."""
    kept_bytes: int
    """Memory that every rank may use for data that persist between steps, in bytes."""
    loops: bool = False
    """Whether a rank has devices that loop over edges; then all rows are exchanged before any rank sums them,
    also for the sums of built-in layers.
    """

    __repr__ = one_line

    @property
    def travelling(self) -> ChunkTravel:
        """Halo exchange for devices that compute in chunks."""
        return ChunkTravel(self.spread, self.num_vertices)

    def gathering(self, what: Gathers, dtype: np.dtype[Any], layer: int) -> Gathering:
        """Create the gather operation of a layer, 1..L."""
        if isinstance(what, Aggregation) and what.reduce != "max" and not self.loops:
            return SumOnRanks(self.spread, what, dtype)
        edges = self.spread.edges
        if isinstance(what, Aggregation) and what.self_path == "add" and not edges.grid.multiplies_own:
            # Among the ranks of a block, only one adds the local rows.
            what = replace(what, self_path="none")
        inner = gathering_of(what, edges.topology, dtype, layer, edges.vertices)
        return GatherOnRanks(self.spread, inner, read_at_sources(what))


def read_at_sources(what: Gathers) -> list[bool]:
    """Return for each message whether edges read it at their source."""
    if isinstance(what, SagaSum):
        return [end == "source" for end in what.ends]
    if isinstance(what, AttentionSum):
        return [True, True, False]
    return [True]
