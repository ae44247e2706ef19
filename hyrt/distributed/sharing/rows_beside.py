"""Rows of ranks on the same machine, which each of them reads where they lie: in the files of their parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.watch.rank_figures import told_by_all
from hyrt.errors import DataError, listed
from hyrt.graph.partition.manifest import MANIFEST, PartitionManifest, part_folder
from hyrt.graph.partition.one_part import OpenPart
from hyrt.graph.partition.part_files import PartFiles
from hyrt.graph.row_source import DenseFeatures
from hyrt.quantities import one_line

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class RowsBeside:
    """Which ranks read each other's rows, and those that this rank can read."""

    rows: Mapping[int, DenseFeatures]
    """Those of other ranks, by their numbers."""
    machines: Sequence[int]
    """[N] for each rank, the first of those that read each other's rows: itself where none does."""

    __repr__ = one_line

    @property
    def said(self) -> tuple[str, ...]:
        """What a run says of it at its start."""
        groups = _groups(self.machines)
        if not groups:
            return ()
        named = "; ".join(listed([str(rank) for rank in group]) for group in groups)
        return (
            f"ranks on one machine read each other's rows there ({named}): distributed.share_rows=false "
            "sends them, as between machines",
        )


def rows_beside(source: str, part: OpenPart, ranks: JoinedRanks) -> RowsBeside:
    """Find the ranks that can read each other's rows, and map them; all ranks call it at once.

    Two ranks can if they are on one machine, in one network namespace, and have their parts in the same
    folder. A file that is mapped by several processes is in memory once. Containers and emulated nodes have
    namespaces of their own: between them, rows travel.

    Parameters
    ----------
    source
        The folder with the parts.
    part
        The part of this rank. The owners of other parts have compared them with their checksums.
    ranks
        All ranks.
    """
    places = told_by_all(ranks.control, _place(source, part, ranks))
    # The first rank in the same place; a rank whose rows nobody else can read is alone.
    found = [
        rank if place is None else next(at for at, other in enumerate(places) if _is_near(place, other))
        for rank, place in enumerate(places)
    ]
    others = [rank for rank, first in enumerate(found) if first == found[ranks.rank] and rank != ranks.rank]
    opened = {rank: _rows_at(source, part.manifest, rank, places[rank]["file"]) for rank in others}
    # Who cannot map a file would ask for its rows: then all ranks of the machine send theirs.
    can = told_by_all(ranks.control, None not in opened.values())
    broken = {first for rank, first in enumerate(found) if not can[rank]}
    machines = [rank if first in broken else first for rank, first in enumerate(found)]
    if found[ranks.rank] in broken:
        return RowsBeside({}, machines)
    return RowsBeside({rank: rows for rank, rows in opened.items() if rows is not None}, machines)


def no_rows_beside(num_ranks: int) -> RowsBeside:
    """Each rank sends its rows to all others."""
    return RowsBeside({}, range(num_ranks))


def _place(source: str, part: OpenPart, ranks: JoinedRanks) -> dict[str, Any] | None:
    """The machine of this rank, and the file of its rows there; None where nobody else can read them."""
    # Sparse rows may have been scaled here, and parts that make a block are in this process's memory.
    if not isinstance(part.rows, DenseFeatures) or part.manifest.num_parts != ranks.size:
        return None
    try:
        folder = _identity(Path(source).expanduser() / MANIFEST)
        machine = [_BOOT.read_text().strip(), _identity(_NETWORK), folder]
        return {"machine": machine, "file": _identity(_file(source, ranks.rank))}
    except OSError:
        return None


def _is_near(place: dict[str, Any], other: dict[str, Any] | None) -> bool:
    return other is not None and other["machine"] == place["machine"]


def _rows_at(
    source: str, manifest: PartitionManifest, number: int, file: Sequence[int]
) -> DenseFeatures | None:
    """The rows of another part, if they are in that file and have the shape that the manifest says."""
    try:
        if _identity(_file(source, number)) != list(file):
            return None
        files = PartFiles(Path(source).expanduser(), source, manifest)
        rows = files.part_rows(number, verify=False)
    except (OSError, DataError):
        return None
    return rows if isinstance(rows, DenseFeatures) else None


def _file(source: str, number: int) -> Path:
    return Path(source).expanduser() / part_folder(number) / "features.npy"


def _identity(path: Path) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino]


def _groups(machines: Sequence[int]) -> list[list[int]]:
    """The ranks that read each other's rows."""
    by_first: dict[int, list[int]] = {}
    for rank, first in enumerate(machines):
        by_first.setdefault(first, []).append(rank)
    return [group for group in by_first.values() if len(group) > 1]
