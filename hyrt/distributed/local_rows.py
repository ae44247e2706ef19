"""Feature rows of a rank and of the ranks on the same host, the graph with all rows, and the row cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.distributed_rows import DistributedRows, DistributedSparseRows
from hyrt.distributed.process_group import all_gather_object
from hyrt.distributed.strategies.load_balancing import remote_reads
from hyrt.distributed.strategies.strategy import Strategy
from hyrt.errors import ConfigError, DataError, join_names
from hyrt.formatting import format_bytes, short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.partition.manifest import MANIFEST, PartitionManifest, part_folder_name
from hyrt.graph.partition.read_parts import OpenPart, PartFiles
from hyrt.graph.row_source import DenseFeatures, PrefetchedRowSource, SparseFeatures
from hyrt.runtime.workers import current_workers
from hyrt.sampling.hotness import HotnessRanking
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.telemetry.events import Notice
from hyrt.telemetry.hooks import Hook
from hyrt.training.setup import PreparedRun


@dataclass(frozen=True, slots=True, eq=False)
class LocalRows:
    """Feature rows of one rank's vertices, with the owner and row index of every vertex."""

    rows: DenseFeatures | SparseFeatures
    """Rows of this rank's vertices, [n, F]."""
    owners: NDArray[Any]
    """Owner rank of each vertex, [V] integers."""
    local_ids: NDArray[Any]
    """Row index of each vertex at its owner rank, [V] integers."""
    same_host_rows: Mapping[int, DenseFeatures] = field(default_factory=dict)
    """Rows of other ranks on this host, by rank. Sharing is symmetric between two ranks."""

    __repr__ = short_repr


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class SameHostRows:
    """Groups of ranks that share rows, and the shared rows that this rank can read."""

    rows: Mapping[int, DenseFeatures]
    """Rows of other ranks, by rank."""
    group_leaders: Sequence[int]
    """Lowest rank of each rank's group, [N]; the rank itself if it does not share rows."""

    __repr__ = short_repr

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices that are printed at the start of a run."""
        groups = _sharing_groups(self.group_leaders)
        if not groups:
            return ()
        named = "; ".join(join_names([str(rank) for rank in group]) for group in groups)
        return (
            f"ranks on the same machine share their feature rows ({named}): set "
            "distributed.shared_memory_features=false to send rows as between machines",
        )


def map_same_host_rows(source: str, part: OpenPart, ranks: DistributedContext) -> SameHostRows:
    """Find the ranks that can share rows, and map their rows; all ranks must call this at the same time.

    Two ranks can share rows if they are on one machine and in one network namespace, and if their parts are
    in the same folder (`source`). A file that several processes map is in memory only once. Containers and
    emulated nodes have separate namespaces and exchange rows over the network. Checksums of other parts are
    verified by their owners.
    """
    locations = all_gather_object(ranks.control, _row_location(source, part, ranks))
    # Lowest rank with the same location. A rank that cannot share its rows forms a group alone.
    group_leaders = [
        rank
        if location is None
        else next(index for index, other in enumerate(locations) if _is_same_machine(location, other))
        for rank, location in enumerate(locations)
    ]
    others = [
        rank
        for rank, first in enumerate(group_leaders)
        if first == group_leaders[ranks.rank] and rank != ranks.rank
    ]
    opened = {rank: _map_rows(source, part.manifest, rank, locations[rank]["file"]) for rank in others}
    # A rank that cannot map a file would request rows, so all ranks of its group must exchange rows.
    can_map = all_gather_object(ranks.control, None not in opened.values())
    broken = {first for rank, first in enumerate(group_leaders) if not can_map[rank]}
    machines = [rank if first in broken else first for rank, first in enumerate(group_leaders)]
    if group_leaders[ranks.rank] in broken:
        return SameHostRows({}, machines)
    return SameHostRows({rank: rows for rank, rows in opened.items() if rows is not None}, machines)


def no_same_host_rows(num_ranks: int) -> SameHostRows:
    """Return a result without shared rows: all rows are exchanged between ranks."""
    return SameHostRows({}, range(num_ranks))


def _row_location(source: str, part: OpenPart, ranks: DistributedContext) -> dict[str, Any] | None:
    """Return the machine and the row file of this rank; None if its rows cannot be shared."""
    # Sparse rows may have been scaled in memory, and a block merged from several parts has no file.
    if not isinstance(part.rows, DenseFeatures) or part.manifest.num_parts != ranks.size:
        return None
    try:
        folder = _file_identity(Path(source).expanduser() / MANIFEST)
        machine = [_BOOT.read_text().strip(), _file_identity(_NETWORK), folder]
        return {"machine": machine, "file": _file_identity(_row_file(source, ranks.rank))}
    except OSError:
        return None


def _is_same_machine(location: dict[str, Any], other: dict[str, Any] | None) -> bool:
    return other is not None and other["machine"] == location["machine"]


def _map_rows(
    source: str, manifest: PartitionManifest, number: int, file: Sequence[int]
) -> DenseFeatures | None:
    """Map the rows of another part. Return None unless it is the given file, with the manifest's shape."""
    try:
        if _file_identity(_row_file(source, number)) != list(file):
            return None
        files = PartFiles(Path(source).expanduser(), source, manifest)
        rows = files.part_rows(number, verify=False)
    except (OSError, DataError):
        return None
    return rows if isinstance(rows, DenseFeatures) else None


def _row_file(source: str, number: int) -> Path:
    return Path(source).expanduser() / part_folder_name(number) / "features.npy"


def _file_identity(path: Path) -> list[int]:
    status = os.stat(path)
    return [status.st_dev, status.st_ino]


def _sharing_groups(machines: Sequence[int]) -> list[list[int]]:
    by_first: dict[int, list[int]] = {}
    for rank, first in enumerate(machines):
        by_first.setdefault(first, []).append(rank)
    return [group for group in by_first.values() if len(group) > 1]


def build_global_graph(
    config: Config, graph: Graph, local_rows: LocalRows, ranks: DistributedContext
) -> Graph:
    """Return the graph with all rows, in which the load stage fetches the rows of other ranks.

    `distributed.comm_dtype` is the wire format of the rows. Raises ConfigError if it would round sparse rows.
    """
    rows: PrefetchedRowSource
    if isinstance(local_rows.rows, SparseFeatures):
        if config.distributed.comm_dtype != "float32":
            raise ConfigError(
                f"distributed.comm_dtype={config.distributed.comm_dtype} has no effect on the sparse rows "
                f"of {config.data.source}, which are sent unchanged: remove distributed.comm_dtype"
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
        """Add the cache sizes (rows and bytes) and the hit rates to the summary."""
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

    `distributed.cache` is the size of the cache. `strategy` places the targets, which determines the rows
    that each rank needs. Raises ConfigError if the sampler is not a neighbour sampler, because its reads
    cannot be predicted.
    """
    cache_size, settings, rows = config.distributed.cache, config.sampler, prepared.graph.features
    assert cache_size is not None
    assert isinstance(rows, DistributedRows | DistributedSparseRows)
    if not isinstance(settings, NeighborSettings):
        raise ConfigError(
            f"distributed.cache requires sampler.kind=neighbor, but sampler.kind is {settings.kind}: "
            "remove distributed.cache"
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
