"""Feature rows of a rank, owners of all rows, and rows of ranks on the same host, mapped from their files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.rank_stats import all_gather_object
from hyrt.errors import DataError, join_names
from hyrt.formatting import short_repr
from hyrt.graph.partition.manifest import MANIFEST, PartitionManifest, part_folder_name
from hyrt.graph.partition.read_parts import OpenPart, PartFiles
from hyrt.graph.row_source import DenseFeatures, SparseFeatures


@dataclass(frozen=True, slots=True, eq=False)
class LocalRows:
    """Feature rows of one rank's vertices, with the location of every other vertex's row."""

    rows: DenseFeatures | SparseFeatures
    """Rows of this rank's vertices, [n, F]."""
    owners: NDArray[Any]
    """Owner rank of each vertex, [V] integers."""
    local_ids: NDArray[Any]
    """Row index of each vertex at its owner rank, [V] integers."""
    same_host_rows: Mapping[int, DenseFeatures] = field(default_factory=dict)
    """Rows of other ranks on this host, by rank. The relation is symmetric: either both of two ranks list
    each other, or neither does."""

    __repr__ = short_repr


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class SameHostRows:
    """Groups of ranks that share rows, and the shared rows that this rank can read."""

    rows: Mapping[int, DenseFeatures]
    """Rows of other ranks, by rank."""
    group_leaders: Sequence[int]
    """Lowest rank of each rank's group, [N]; the rank itself if it shares no rows."""

    __repr__ = short_repr

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the start of a run."""
        groups = _sharing_groups(self.group_leaders)
        if not groups:
            return ()
        named = "; ".join(join_names([str(rank) for rank in group]) for group in groups)
        return (
            f"ranks on one machine share their rows ({named}): set "
            "distributed.shared_memory_features=false to send rows "
            "as between machines",
        )


def map_same_host_rows(source: str, part: OpenPart, ranks: DistributedContext) -> SameHostRows:
    """Find the ranks that can share rows, and map their rows; all ranks must call this at the same time.

    Two ranks can share rows if they are on one machine and in one network namespace, and if their parts are
    in the same folder (`source`). A file that is mapped by several processes is in memory once. Containers
    and emulated nodes have separate namespaces and exchange rows over the network. The owners of the other
    parts verify their checksums.
    """
    locations = all_gather_object(ranks.control, _row_location(source, part, ranks))
    # Lowest rank with the same location; a rank whose rows cannot be shared forms its own group.
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
    # If a rank cannot map a file, it would request rows: then all ranks of its group exchange rows.
    can_map = all_gather_object(ranks.control, None not in opened.values())
    broken = {first for rank, first in enumerate(group_leaders) if not can_map[rank]}
    machines = [rank if first in broken else first for rank, first in enumerate(group_leaders)]
    if group_leaders[ranks.rank] in broken:
        return SameHostRows({}, machines)
    return SameHostRows({rank: rows for rank, rows in opened.items() if rows is not None}, machines)


def no_same_host_rows(num_ranks: int) -> SameHostRows:
    """Return a result without shared rows, with which each rank sends its rows to all other ranks."""
    return SameHostRows({}, range(num_ranks))


def _row_location(source: str, part: OpenPart, ranks: DistributedContext) -> dict[str, Any] | None:
    """Return this rank's machine and the identity of its row file; None if its rows cannot be shared."""
    # Sparse rows may have been scaled in memory, and parts that form a block exist only in this process.
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
    """Map the rows of another part, if they are in the given file and have the shape in the manifest."""
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
