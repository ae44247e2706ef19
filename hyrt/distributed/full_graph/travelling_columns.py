"""Exchange widths: numbers of columns that are exchanged in an epoch."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hyrt.distributed.full_graph.rank_gatherings import adds_up, read_at_sources
from hyrt.errors import ConfigError
from hyrt.fullgraph.plan import can_take_apart, plan_chain
from hyrt.nn.model import GNN


@dataclass(frozen=True, slots=True)
class TravellingColumns:
    """Number of columns that each gather operation exchanges."""

    forward: tuple[int, ...]
    back: tuple[int, ...]
    """`forward` and `back`: columns of rows, and columns of their gradients."""
    adds_up: bool
    """Whether all gather operations are sums, as required for 1.5D."""

    @classmethod
    def of(
        cls, model: GNN, num_vertices: int, num_edges: int, *, is_sparse: bool, kept_bytes: int = sys.maxsize
    ) -> TravellingColumns:
        """Determine the exchange widths of a model.

        Parameters
        ----------
        model
            The model.
        num_vertices, num_edges
            Size of the graph.
        is_sparse
            Whether features are sparse.
        kept_bytes
            Memory that each rank may use to keep the gathered rows of the first layer, in bytes.

        Raises
        ------
        ConfigError
            If the model cannot be distributed over ranks.
        """
        if not can_take_apart(model):
            raise ConfigError(
                f"{type(model).__name__} computes the whole graph at once and cannot be distributed over "
                "ranks: train a model of hyrt.nn with --full-graph, or remove --full-graph"
            )
        plan = plan_chain(
            model, num_vertices, num_edges, is_sparse=is_sparse, memory_bytes=kept_bytes, travels=True
        )
        forward, backward = [], []
        for i, parts in enumerate(plan.parts):
            flags = read_at_sources(parts.gather)
            widths = [w for w, read in zip(parts.message_widths, flags, strict=True) if read]
            if i or not plan.keeps_first:
                forward.append(sum(widths))
            if i or plan.stages[0].parameters:
                backward.append(sum(widths))
        return cls(tuple(forward), tuple(backward), all(adds_up(parts.gather) for parts in plan.parts))
