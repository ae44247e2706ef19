"""Cache of remote rows, which is filled once before the first step and used for the whole run."""

from __future__ import annotations

from typing import Any

import torch

from hyrt.config import Config
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.cache_choice import remote_reads
from hyrt.distributed.rows.distributed_rows import DistributedRows
from hyrt.distributed.rows.distributed_sparse_rows import DistributedSparseRows
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.strategies.strategy import Strategy
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.machine.workers import current_workers
from hyrt.observe.events import Notice
from hyrt.observe.hook import Hook
from hyrt.quantities import size
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.sampling.visits.row_ranking import RowRanking
from hyrt.training.setup import PreparedRun


class RowCache(Hook):
    """Reports the hit rate of the row caches of all ranks at the end of a run.

    Parameters
    ----------
    rows
        Rows of all ranks.
    reads
        Expected reads of this rank.
    ranks
        All ranks.
    """

    def __init__(
        self, rows: DistributedRows | DistributedSparseRows, reads: RowRanking, ranks: JoinedRanks
    ) -> None:
        self._rows = rows
        self._reads = reads
        self._group = ranks.control

    def end(self, summary: dict[str, Any]) -> Notice:
        """Add the numbers of rows and bytes and the hit rates to the summary."""
        counts = self._rows.cache_counts()
        expected = [self._reads.of_first(counts.rows), self._reads.of_first(len(self._reads.visits))]
        totals = torch.tensor([*counts, *expected], dtype=torch.float64)
        self._group.add(totals, "control")
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
            f"{rows:,.0f} remote rows were cached ({size(num_bytes)} in total): hit rate {measured:.1%} "
            f"({predicted:.1%} predicted)"
        )
        return Notice(kind="info", text=text)


def fill_cache(
    config: Config, graph: Graph, own: OwnRows, ranks: JoinedRanks, prepared: PreparedRun, strategy: Strategy
) -> RowCache:
    """Fill this rank's row cache; every rank must call it at the same time.

    Parameters
    ----------
    config
        All settings; `distributed.cache` is the size of the cache.
    graph
        The topology.
    own
        Local rows and the owners of all rows.
    ranks
        All ranks.
    prepared
        Training vertices, and the graph with the rows of all ranks.
    strategy
        Places the targets, and thereby determines which rank needs which rows.

    Raises
    ------
    ConfigError
        If the sampler is not a neighbour sampler: its reads cannot be predicted.
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
        own.homes,
        ranks.rank,
        ranks.size,
        strategy,
        config.data.batch_size,
        config.fanouts,
        own.beside,
    )
    workers = current_workers()
    if isinstance(cache_size, float):
        chosen = reads.vertices[: int(cache_size * graph.num_vertices)]
    else:
        chosen = rows.fitting(reads.vertices, cache_size, workers)
    rows.cache(chosen, workers)
    return RowCache(rows, reads, ranks)
