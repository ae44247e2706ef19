"""Manifest partition.json, file names of a partition, and partition metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from hyrt.errors import DataError
from hyrt.formatting import pluralize
from hyrt.graph.formats.npy import CHUNK_BYTES, NpyChecksums

MANIFEST = "partition.json"
FORMAT = 1
GRAPH = "graph"
"""Name of the folder with the files that every rank reads."""
MAX_PARTS = 1024

EdgeLayout = Literal["replicated", "split"]


class PartSizes(BaseModel):
    """Sizes of one part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vertices: int
    edges: int
    """Number of edges into the part's vertices."""
    training: int
    """Number of training vertices in the part; those of the first split if there are several."""
    cut: int
    """Number of edges into the part's vertices from vertices of other parts."""
    sends: int | None = None
    """Number of rows to send, counted once for each part that needs the row; None if unknown."""
    receives: int | None = None
    """Number of rows to receive from other parts; None if unknown."""


class FeatureFormat(BaseModel):
    """Format of the feature rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["dense", "sparse"]
    width: int
    dtype: str
    bags_of_words: bool
    """Whether rows are sparse and all values are 1, which determines the scaling for `normalize='auto'`."""


class PartitionManifest(BaseModel):
    """Contents of partition.json: source, method, sizes of the parts, and checksums of the files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    id: str = ""
    """Hash of all other fields, so that equal partitions have equal ids."""
    source: str
    """Source of the dataset, as the user specified it."""
    normalize: str
    """Normalization that has been applied to the features."""
    method: str
    seed: int
    topology: EdgeLayout
    """Edge layout. `replicated`: all ranks read all edges. `split`: a part has its vertices' in-edges."""
    vertices: int
    edges: int
    features: FeatureFormat
    symmetric: bool
    """Whether every edge has a reverse edge."""
    edges_checksum: int | None = None
    """`Topology.checksum` of all edges; None in partitions of older versions."""
    parts: list[PartSizes]
    cut: int
    """Number of edges between different parts."""
    locality: float
    """Fraction of edges that are not cut; 1 without edges."""
    crc32_chunk_bytes: int = CHUNK_BYTES
    files: dict[str, NpyChecksums]
    """Checksums by path of the file in the folder."""

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    def with_id(self) -> Self:
        """Return a copy of the manifest with its id."""
        return self.model_copy(update={"id": _identity(self.model_dump(mode="json"))})


def part_folder_name(number: int) -> str:
    """Return the folder name of a part."""
    return f"part-{number:04}"


def choose_part_dtype(num_parts: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for part indices."""
    return np.min_scalar_type(num_parts - 1)


def is_partition(folder: Path) -> bool:
    """Return whether a folder contains a partition."""
    return (folder / MANIFEST).is_file()


def write_manifest(manifest: PartitionManifest, folder: Path) -> None:
    """Write partition.json. This must be the last file, because a partition without it cannot be opened."""
    text = manifest.model_dump_json(indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> PartitionManifest:
    """Read partition.json.

    Raises DataError if the file is missing, damaged, edited, or has a newer format.
    """
    file = folder / MANIFEST
    remedy = "copy it again from the original folder, or run hyrt partition again"
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror or error}): pass a folder written by hyrt partition"
        ) from error
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): {remedy}") from error
    if not isinstance(found, dict):
        raise DataError(f"{file} is damaged (it does not contain a JSON object): {remedy}")
    if found.get("format") != FORMAT:
        raise DataError(
            f"{file} has unknown format {found.get('format')} (known: {FORMAT}): update hyrt if a newer "
            "version wrote the file"
        )
    if found.get("id") != _identity(found):
        raise DataError(f"{file} is damaged or edited (its id does not match its content): {remedy}")
    try:
        manifest = PartitionManifest.model_validate(found)
    except ValidationError as error:
        raise DataError(f"{file} has invalid or missing fields: {remedy}") from error
    if manifest.crc32_chunk_bytes != CHUNK_BYTES:
        raise DataError(f"{file} is damaged (crc32_chunk_bytes {manifest.crc32_chunk_bytes}): {remedy}")
    return manifest


def _identity(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "id"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16).hexdigest()


def count_part_sizes(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    training: NDArray[np.bool_],
    part_ids: NDArray[Any],
    num_parts: int,
    range_entries: int,
) -> list[PartSizes]:
    """Count the vertices, edges and communication volumes of each part.

    `indptr` and `indices` are the edges as CSR by destination, `training` [V] marks training vertices, and
    `part_ids` [V] are part indices. At most `range_entries` edges are processed at once, unless a single row
    is longer.
    """
    from hyrt.graph.csr import iter_row_ranges
    from hyrt.graph.partition.block_volumes import count_block_volumes

    cut = np.zeros(num_parts, np.int64)
    edges = np.zeros(num_parts, np.int64)
    for starts, sources, first in iter_row_ranges(indptr, indices, range_entries):
        lengths = np.diff(starts)
        into = np.repeat(part_ids[first : first + len(lengths)], lengths)
        edges += np.bincount(into, minlength=num_parts)
        cut += np.bincount(into[part_ids[sources] != into], minlength=num_parts)
    counts = (
        np.bincount(part_ids, minlength=num_parts),
        edges,
        np.bincount(part_ids[training], minlength=num_parts),
    )
    needed = count_block_volumes(indptr, indices, part_ids, num_parts).needed
    columns = zip(*counts, cut, needed.sum(axis=0), needed.sum(axis=1), strict=True)
    names = ("vertices", "edges", "training", "cut", "sends", "receives")
    return [PartSizes(**dict(zip(names, map(int, row), strict=True))) for row in columns]


_SHOWN_PARTS = 16


def partition_metrics(manifest: PartitionManifest) -> dict[str, Any]:
    """Return the manifest without its files, but with the imbalance of the parts, as JSON data."""
    figures = manifest.model_dump(mode="json", exclude={"files", "crc32_chunk_bytes"})
    columns = {
        key: [getattr(part, key) for part in manifest.parts] for key in ("vertices", "edges", "training")
    }
    figures["imbalance"] = {key: compute_imbalance(column) for key, column in columns.items()}
    sends = [part.sends for part in manifest.parts if part.sends is not None]
    receives = [part.receives for part in manifest.parts if part.receives is not None]
    if sends:
        figures["volume"] = {
            "total": sum(sends),
            "largest": max(sends),
            "imbalance": compute_imbalance(sends),
        }
    if receives:
        busiest, mean = max(*sends, *receives), sum(sends) / len(sends)
        over = busiest / mean - 1 if mean else 0.0
        figures["volume"] |= {
            "largest_received": max(receives),
            "busiest": busiest,
            "busiest_over_mean": over,
        }
    return figures


def compute_imbalance(amounts: Sequence[float]) -> float:
    """Return the largest amount divided by the mean, minus 1; 0 if the sum is 0."""
    total = sum(amounts)
    return max(amounts) * len(amounts) / total - 1 if total else 0.0


def format_metrics(metrics: dict[str, Any]) -> list[str]:
    """Format the result of `partition_metrics` as lines for a terminal."""
    parts, uneven = metrics["parts"], metrics["imbalance"]
    lines = [
        f"parts      {pluralize(len(parts), 'part')} by {metrics['method']}, seed {metrics['seed']} · "
        f"topology {metrics['topology']} · id {metrics['id']}",
        f"source     {metrics['source']} · normalize {metrics['normalize']}",
        f"cut        {metrics['cut']:,} of {pluralize(metrics['edges'], 'edge')} · locality "
        f"{metrics['locality']:.1%}",
        f"imbalance  vertices {uneven['vertices']:.1%} · edges {uneven['edges']:.1%} · training vertices "
        f"{uneven['training']:.1%}",
        "",
        f"{'part':>6}{'vertices':>14}{'in-edges':>16}{'training':>12}{'cut in-edges':>16}",
    ]
    if "volume" in metrics:
        volume = metrics["volume"]
        lines.insert(
            -2,
            f"volume     {pluralize(volume['total'], 'row')} sent per full-graph "
            "product · at most "
            + (
                f"{volume['busiest']:,} sent or received by one part, {volume['busiest_over_mean']:.1%} "
                "above the mean"
                if "busiest" in volume
                else f"{volume['largest']:,} by one part, {volume['imbalance']:.1%} above the mean"
            ),
        )
    lines += [
        f"{number:>6}{part['vertices']:>14,}{part['edges']:>16,}{part['training']:>12,}{part['cut']:>16,}"
        for number, part in enumerate(parts[:_SHOWN_PARTS])
    ]
    if len(parts) > _SHOWN_PARTS:
        lines.append(f"       ... {pluralize(len(parts) - _SHOWN_PARTS, 'more part')}; use --json for all")
    return lines
