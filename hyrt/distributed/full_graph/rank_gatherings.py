"""What makes the gatherings of a model over the edges of all ranks."""

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
    """Whether what is gathered of some edges can be added to what is gathered of the others."""
    if isinstance(what, SagaSum):
        # Every column would add a loop of its own.
        return what.program.accumulate in ("sum", "mean") and not what.loops
    return isinstance(what, Aggregation) and what.reduce != "max"


@dataclass(frozen=True)
class RankGatherings:
    """Makes gatherings; see `hyrt.sampling.full.whole_graph.Gatherings`."""

    spread: SpreadEdges
    """The edges of this rank."""
    num_vertices: int
    num_edges: int
    """`num_vertices` and `num_edges`: those of the graph."""
    kept_bytes: int
    """What every rank has the memory to keep between steps."""
    loops: bool = False
    """Whether a rank has devices that loop over the edges: then all rows travel before any rank adds them
    up, sums of built-in layers, too."""

    __repr__ = one_line

    @property
    def travelling(self) -> ChunkTravel:
        """What brings rows to devices that compute in chunks."""
        return ChunkTravel(self.spread, self.num_vertices)

    def gathering(self, what: Gathers, dtype: np.dtype[Any], layer: int) -> Gathering:
        """The gathering that layer 1..L asks for."""
        if isinstance(what, Aggregation) and what.reduce != "max" and not self.loops:
            return SumOnRanks(self.spread, what, dtype)
        edges = self.spread.edges
        if isinstance(what, Aggregation) and what.self_path == "add" and not edges.grid.multiplies_own:
            # Of the ranks of a block, one adds its own rows.
            what = replace(what, self_path="none")
        inner = gathering_of(what, edges.topology, dtype, layer, edges.vertices)
        return GatherOnRanks(self.spread, inner, read_at_sources(what))


def read_at_sources(what: Gathers) -> list[bool]:
    """For each message, whether edges read it at their source."""
    if isinstance(what, SagaSum):
        return [end == "source" for end in what.ends]
    if isinstance(what, AttentionSum):
        return [True, True, False]
    return [True]
