"""Cost of a full-graph step shared by ranks, from the machine's measured rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hyrt_perfmodel.platforms.host_tables import sparse_seconds
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.platforms.whole_graph_rates import WholeGraphRates
from hyrt_perfmodel.workloads.whole_graph import WholeGraphStep
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.fullgraph.plan import plan_chain
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseSource
from hyrt.predict.bare_model import small_model
from hyrt.predict.dataset_sizes import graph_sizes
from hyrt.predict.whole_graphs.step_walk import StepWalk
from hyrt.predict.whole_graphs.whole_graph_sizes import WholeGraphSizes
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOnRanks:
    """A step as planned by ranks, with the first layer's gather cached if possible."""

    platform: Platform
    """The machine."""
    rates: WholeGraphRates
    """Measured rates of the machine."""
    training: TrainingWorkload
    """The work."""
    whole: WholeGraphStep
    """The step over all rows."""
    row: WholeGraphStep
    """The step over a single row without edges: the fixed cost of a step."""
    chunk_rows: int
    """Rows that a thread computes at a time."""

    __repr__ = one_line

    def seconds(self, threads: int) -> tuple[float, float, float]:
        """Return (gather, row-wise, fixed) times: seconds with `threads` threads, and core-seconds per
        rank.
        """
        full_step, row, rates = self.whole, self.row, self.rates
        calls_s = rates.call_s * rates.threads
        rows_s = rates.rows_s(full_step, threads) - row.calls * calls_s / threads
        rows_s += self._sparse_s(
            full_step.sparse_macs, full_step.sparse_weights - row.sparse_weights, threads
        )
        rank_s = row.calls * calls_s + self._sparse_s(0.0, row.sparse_weights, 1)
        return rates.reads_s(full_step.reads, threads, self.training.model), max(0.0, rows_s), rank_s

    def _sparse_s(self, macs: float, weights: float, threads: int) -> float:
        work, host = self.training.at(1.0), self.platform.host
        if work.sparse is None:
            return 0.0
        width = work.sparse.product_width
        if not host.sparse:
            return macs / host.macs_per_s
        return sparse_seconds(
            host.sparse,
            macs=macs,
            weights=max(0.0, weights),
            product_width=width,
            weight_bytes=work.features[0] * width * work.bytes_per_value,
            threads=threads,
        )


def step_on_ranks(
    config: Config, graph: Graph, platform: Platform, training: TrainingWorkload, *, kept_bytes: int
) -> StepOnRanks | None:
    """Return a step of the CPU; None if its cost was not measured.

    Parameters
    ----------
    config, graph, platform, training
        Arguments of `hyrt.predict.ranks.full_graph_on_ranks.full_graph_work`.
    kept_bytes
        Cache size per rank for the first layer's gather.
    """
    rates = platform.host.whole_graph
    is_host = all(trainer.is_host for trainer in platform.trainers(training.model))
    if rates is None or training.whole is None or not is_host:
        return None
    model = small_model(config, graph.num_features, graph.num_outputs)
    plan = plan_chain(
        model,
        graph.num_vertices,
        graph.num_edges,
        is_sparse=isinstance(graph.features, SparseSource),
        memory_bytes=kept_bytes,
        travels=True,
    )
    targets = graph.split("train", config.data.split)
    entries = graph_sizes(graph, targets).row_entries

    def step(vertices: int, edges: int, num_targets: int, target_edges: float) -> WholeGraphStep:
        sizes = WholeGraphSizes(
            vertices=vertices,
            edges=edges,
            targets=num_targets,
            target_edges=target_edges,
            scored=0,
            held={},
            row_entries=entries,
        )
        dry_run = StepWalk(plan, sizes)
        dry_run.step()
        return WholeGraphStep(
            arrays={},
            reads=tuple(dry_run.reads),
            calls=dry_run.calls,
            macs=dry_run.macs,
            values=dry_run.values,
            sparse_macs=dry_run.sparse_macs,
            sparse_weights=dry_run.sparse_weights,
        )

    target_edges = float(graph.topology.in_degrees[targets].sum(dtype=np.int64))
    full_step = step(graph.num_vertices, graph.num_edges, len(targets), target_edges)
    if not rates.knows(full_step, training.model):
        return None
    return StepOnRanks(
        platform=platform,
        rates=rates,
        training=training,
        whole=full_step,
        row=step(1, 0, 1, 0.0),
        chunk_rows=plan.chunk_rows,
    )
