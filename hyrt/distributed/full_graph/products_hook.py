"""What products over all ranks took, in the summary of a run."""

from __future__ import annotations

from typing import Any

from hyrt.distributed.full_graph.spread_edges import SpreadEdges
from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.watch.rank_figures import told_by_all
from hyrt.observe.events import Event, Notice, StepGroup
from hyrt.observe.hook import Hook


class ProductsHook(Hook):
    """Tells how much of the communication of products was hidden behind multiplying.

    Parameters
    ----------
    spread
        The edges, which know what products took.
    group
        The ranks, for the thread that drives the run.
    """

    def __init__(self, spread: SpreadEdges, group: RankGroup) -> None:
        self._spread = spread
        self._group = group
        self._heard = False

    def hear(self, event: Event) -> None:
        """Forget the first step, in which operators are compiled and raw features gathered."""
        if isinstance(event, StepGroup) and not self._heard:
            self._heard = True
            self._spread.times.clear()

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Add the times of all ranks."""
        edges, times = self._spread.edges, self._spread.times
        own = {
            "rows": edges.num_own,
            "remote_rows": edges.num_rows - edges.num_own,
            "edges": edges.topology.num_edges,
            "compute_s": times.compute_s,
            "communicate_s": times.communicate_s,
            "wait_s": times.wait_s,
        }
        of_each = told_by_all(self._group, own)
        summary["products"] = of_each
        if times.hidden is None:
            return None
        waited = max(each["wait_s"] for each in of_each)
        return Notice(
            kind="info",
            text=f"products took rank 0 {times.compute_s:.2f} s of multiplying and {times.communicate_s:.2f} "
            f"s of communication, of which {times.hidden_s:.2f} s were hidden; the "
            f"longest wait of a rank was {waited:.2f} s",
        )
