"""The manifest partition.json, and the file names of a partition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from hyrt.errors import DataError
from hyrt.graph.formats.npy import CHUNK_BYTES
from hyrt.graph.formats.recorded_npy import NpyRecord

MANIFEST = "partition.json"
FORMAT = 1
GRAPH = "graph"
"""The folder of what every rank reads."""
MOST_PARTS = 1024

EdgeLayout = Literal["replicated", "split"]


class PartSizes(BaseModel):
    """Sizes of one part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vertices: int
    edges: int
    """The edges into its vertices."""
    training: int
    """Its training vertices, by the first of alternative splits."""
    cut: int
    """The edges into its vertices that come from vertices of other parts."""
    sends: int | None = None
    """The rows that it sends, once to each part that has an edge from their vertices; None if not counted."""
    receives: int | None = None
    """The rows of other parts that it has edges from; None if not counted."""


class RowForm(BaseModel):
    """Format of the feature rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["dense", "sparse"]
    width: int
    dtype: str
    bags_of_words: bool
    """Whether rows are sparse and all of their values are 1, as `normalize='auto'` asks."""


class PartitionManifest(BaseModel):
    """Manifest of a partition: source, method, sizes of the parts, and checksums of the files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    id: str = ""
    """A hash of everything else here: equal partitions have equal ones."""
    source: str
    """The dataset, as it was named."""
    normalize: str
    """The normalization that the features have got."""
    method: str
    seed: int
    topology: EdgeLayout
    """`replicated`: every rank reads all edges; `split`: each part has the edges into its vertices."""
    vertices: int
    edges: int
    features: RowForm
    symmetric: bool
    """Whether the edges are their own transpose."""
    parts: list[PartSizes]
    cut: int
    """The edges between different parts."""
    locality: float
    """The share of the edges that are not cut; 1 without edges."""
    crc32_chunk_bytes: int = CHUNK_BYTES
    files: dict[str, NpyRecord]
    """What was written into each file, by its path in the folder."""

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    def identified(self) -> Self:
        """Return the manifest with its id."""
        return self.model_copy(update={"id": _identity(self.model_dump(mode="json"))})


def part_folder(number: int) -> str:
    """Return the folder name of a part."""
    return f"part-{number:04}"


def home_dtype(num_parts: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for part indices."""
    return np.min_scalar_type(num_parts - 1)


def is_partition(folder: Path) -> bool:
    """Return whether a folder contains a partition."""
    return (folder / MANIFEST).is_file()


def write_manifest(manifest: PartitionManifest, folder: Path) -> None:
    """Write partition.json; without it nothing opens, so it is written last."""
    text = manifest.model_dump_json(indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> PartitionManifest:
    """Read partition.json.

    Raises
    ------
    DataError
        If there is none, it is damaged or was edited, or it is of a newer format.
    """
    file = folder / MANIFEST
    again = "copy it again from where the parts were written, or partition again"
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror or error}): a folder of parts is what hyrt partition "
            "writes"
        ) from error
    except ValueError as error:
        raise DataError(f"{file}: damaged ({error}): {again}") from error
    if not isinstance(found, dict):
        raise DataError(f"{file}: damaged (it is not what hyrt writes): {again}")
    if found.get("format") != FORMAT:
        raise DataError(
            f"{file}: format {found.get('format')} is unknown (known: {FORMAT}): a newer hyrt may have "
            "written it"
        )
    if found.get("id") != _identity(found):
        raise DataError(f"{file}: damaged or edited (its id is not that of what it says): {again}")
    try:
        manifest = PartitionManifest.model_validate(found)
    except ValidationError as error:
        raise DataError(f"{file}: it is not what hyrt writes: {again}") from error
    if manifest.crc32_chunk_bytes != CHUNK_BYTES:
        raise DataError(f"{file}: damaged (crc32_chunk_bytes {manifest.crc32_chunk_bytes}): {again}")
    return manifest


def _identity(said: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in said.items() if key != "id"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16).hexdigest()


def part_sizes(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    training: NDArray[np.bool_],
    homes: NDArray[Any],
    num_parts: int,
    range_entries: int,
) -> list[PartSizes]:
    """Count what each part gets.

    Parameters
    ----------
    indptr, indices
        All edges as CSR over incoming edges.
    training
        [V], the training vertices.
    homes
        [V], the part of each vertex.
    num_parts
        The number of parts.
    range_entries
        How many edges are looked at at once; a longer row still is.
    """
    from hyrt.graph.csr import row_ranges
    from hyrt.graph.partition.volumes.block_volumes import block_volumes

    cut = np.zeros(num_parts, np.int64)
    edges = np.zeros(num_parts, np.int64)
    for starts, sources, first in row_ranges(indptr, indices, range_entries):
        lengths = np.diff(starts)
        into = np.repeat(homes[first : first + len(lengths)], lengths)
        edges += np.bincount(into, minlength=num_parts)
        cut += np.bincount(into[homes[sources] != into], minlength=num_parts)
    counts = np.bincount(homes, minlength=num_parts), edges, np.bincount(homes[training], minlength=num_parts)
    needed = block_volumes(indptr, indices, homes, num_parts).needed
    columns = zip(*counts, cut, needed.sum(axis=0), needed.sum(axis=1), strict=True)
    names = ("vertices", "edges", "training", "cut", "sends", "receives")
    return [PartSizes(**dict(zip(names, map(int, row), strict=True))) for row in columns]
