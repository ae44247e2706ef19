"""Graph with the feature rows of all ranks, and the cache of remote rows, filled before the first step."""

from __future__ import annotations

from typing import Any

import torch

from hyrt.config import Config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.rows.distributed_rows import DistributedRows, DistributedSparseRows
from hyrt.distributed.rows.local_rows import LocalRows
from hyrt.distributed.strategies.expected_rows import remote_reads
from hyrt.distributed.strategies.strategy import Strategy
from hyrt.errors import ConfigError
from hyrt.formatting import format_bytes
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import PrefetchedRowSource, SparseFeatures
from hyrt.runtime.workers import current_workers
from hyrt.sampling.hotness import HotnessRanking
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.telemetry.events import Notice
from hyrt.telemetry.hooks import Hook
from hyrt.training.setup import PreparedRun


def build_global_graph(
    config: Config, graph: Graph, local_rows: LocalRows, ranks: DistributedContext
) -> Graph:
    """Return the graph with all rows, of which the load stage fetches those of other ranks.

    `distributed.comm_dtype` is the wire format of the rows. Raises ConfigError if sparse rows would be
    rounded.
    """
    rows: PrefetchedRowSource
    if isinstance(local_rows.rows, SparseFeatures):
        if config.distributed.comm_dtype != "float32":
            raise ConfigError(
                f"distributed.comm_dtype={config.distributed.comm_dtype} rounds dense rows, and "
                f"{config.data.source} has "
                "sparse rows, which are sent unchanged: remove distributed.comm_dtype"
            )
        rows = DistributedSparseRows(local_rows.rows, local_rows.local_ids, local_rows.owners, ranks.rows)
    else:
        wire = config.distributed.comm_dtype
        rows = DistributedRows(
            local_rows.rows,
            local_rows.local_ids,
            local_rows.owners,
            ranks.rows,
            wire,
            same_host_rows=local_rows.same_host_rows,
        )
    return graph.with_features(rows)


class RowCache(Hook):
    """Hook that reports the hit rate of the row caches of all ranks at the end of a run.

    `reads` are the expected reads of this rank.
    """

    def __init__(
        self, rows: DistributedRows | DistributedSparseRows, reads: HotnessRanking, ranks: DistributedContext
    ) -> None:
        self._rows = rows
        self._reads = reads
        self._group = ranks.control

    def on_end(self, summary: dict[str, Any]) -> Notice:
        """Add the numbers of rows and bytes and the hit rates to the summary."""
        counts = self._rows.cache_counts()
        expected = [
            self._reads.covered_accesses(counts.rows),
            self._reads.covered_accesses(len(self._reads.accesses)),
        ]
        totals = torch.tensor([*counts, *expected], dtype=torch.float64)
        self._group.all_reduce(totals, "control")
        rows, num_bytes, hits, lookups, expected_hits, expected_lookups = totals.tolist()
        measured = hits / lookups if lookups else 0.0
        predicted = expected_hits / expected_lookups if expected_lookups else 0.0
        summary["row_cache"] = {
            "rows": int(rows),
            "bytes": int(num_bytes),
            "hit_rate": measured,
            "predicted_hit_rate": predicted,
        }
        text = (
            f"{rows:,.0f} remote rows were cached ({format_bytes(num_bytes)} in total): hit rate "
            f"{measured:.1%} ({predicted:.1%} predicted)"
        )
        return Notice(kind="info", text=text)


def fill_cache(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    strategy: Strategy,
) -> RowCache:
    """Fill this rank's row cache; all ranks must call this at the same time.

    `distributed.cache` is the size of the cache. `strategy` places the targets, and thereby determines which
    rank needs which rows. Raises ConfigError if the sampler is not a neighbour sampler: its reads cannot be
    predicted.
    """
    cache_size, settings, rows = config.distributed.cache, config.sampler, prepared.graph.features
    assert cache_size is not None
    assert isinstance(rows, DistributedRows | DistributedSparseRows)
    if not isinstance(settings, NeighborSettings):
        raise ConfigError(
            f"distributed.cache keeps the rows that sampler.kind=neighbor is expected to need, and "
            f"sampler.kind is {settings.kind}: omit distributed.cache"
        )
    reads = remote_reads(
        graph.topology,
        prepared.targets,
        local_rows.owners,
        ranks.rank,
        ranks.size,
        strategy,
        config.data.batch_size,
        config.fanouts,
        local_rows.same_host_rows,
    )
    workers = current_workers()
    if isinstance(cache_size, float):
        chosen = reads.vertices[: int(cache_size * graph.num_vertices)]
    else:
        chosen = rows.select_fitting(reads.vertices, cache_size, workers)
    rows.cache(chosen, workers)
    return RowCache(rows, reads, ranks)
