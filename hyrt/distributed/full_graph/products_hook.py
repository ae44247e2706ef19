"""Report of distributed SpMM timings in the run summary."""

from __future__ import annotations

from typing import Any

from hyrt.distributed.full_graph.spread_edges import SpreadEdges
from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.watch.rank_figures import told_by_all
from hyrt.observe.events import Event, Notice, StepGroup
from hyrt.observe.hook import Hook


class ProductsHook(Hook):
    """Reports how much of the communication of products was hidden behind computation.

    Parameters
    ----------
    spread
        The edges, with their timings.
    group
        The ranks, for the thread that drives the run.
    """

    def __init__(self, spread: SpreadEdges, group: RankGroup) -> None:
        self._spread = spread
        self._group = group
        self._is_warm = False

    def hear(self, event: Event) -> None:
        """Discard the first step, which includes compilation and the first gather of features."""
        if isinstance(event, StepGroup) and not self._is_warm:
            self._is_warm = True
            self._spread.times.clear()

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Add the timings of all ranks to the summary."""
        edges, times = self._spread.edges, self._spread.times
        local = {
            "rows": edges.num_own,
            "remote_rows": edges.num_rows - edges.num_own,
            "edges": edges.topology.num_edges,
            "compute_s": times.compute_s,
            "communicate_s": times.communicate_s,
            "wait_s": times.wait_s,
        }
        all_ranks = told_by_all(self._group, local)
        summary["products"] = all_ranks
        if times.hidden is None:
            return None
        waited = max(timings["wait_s"] for timings in all_ranks)
        return Notice(
            kind="info",
            text=f"products took rank 0 {times.compute_s:.2f} s of multiplying and {times.communicate_s:.2f} "
            f"s of communication, of which {times.hidden_s:.2f} s were hidden; the "
            f"longest wait of a rank was {waited:.2f} s",
        )
