"""How many columns of rows and of gradients travel in an epoch."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hyrt.distributed.full_graph.rank_gatherings import adds_up, read_at_sources
from hyrt.errors import ConfigError
from hyrt.fullgraph.plan import can_take_apart, plan_chain
from hyrt.nn.model import GNN


@dataclass(frozen=True, slots=True)
class TravellingColumns:
    """Columns of what travels, gathering by gathering."""

    forward: tuple[int, ...]
    back: tuple[int, ...]
    """`forward` and `back`: of rows, and of their gradients."""
    adds_up: bool
    """Whether all gatherings are sums, as 1.5D needs."""

    @classmethod
    def of(
        cls, model: GNN, num_vertices: int, num_edges: int, *, is_sparse: bool, kept_bytes: int = sys.maxsize
    ) -> TravellingColumns:
        """Those of a model.

        Parameters
        ----------
        model
            The model.
        num_vertices, num_edges
            The size of the graph.
        is_sparse
            Whether features are sparse.
        kept_bytes
            How much each rank may keep of what the first layer gathers.

        Raises
        ------
        ConfigError
            If ranks cannot share the model.
        """
        if not can_take_apart(model):
            raise ConfigError(
                f"{type(model).__name__} computes the whole graph at once, so that ranks cannot share it: "
                "train a model of hyrt.nn with --full-graph, or omit --full-graph"
            )
        plan = plan_chain(
            model, num_vertices, num_edges, is_sparse=is_sparse, memory_bytes=kept_bytes, travels=True
        )
        forward, back = [], []
        for i, parts in enumerate(plan.parts):
            flags = read_at_sources(parts.gather)
            widths = [w for w, read in zip(parts.message_widths, flags, strict=True) if read]
            if i or not plan.keeps_first:
                forward.append(sum(widths))
            if i or plan.stages[0].parameters:
                back.append(sum(widths))
        return cls(tuple(forward), tuple(back), all(adds_up(parts.gather) for parts in plan.parts))
