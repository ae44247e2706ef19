"""Verified reading of a partition, as one part for a rank or as the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr
from hyrt.graph.formats.npy import map_with_header, rows_per_chunk
from hyrt.graph.formats.schema import (
    EDGE_VALUE_KEYS,
    LARGE_BYTES,
    SPARSE_KEYS,
    Dataset,
    FeatureRows,
    build_graph,
)
from hyrt.graph.graph import Graph
from hyrt.graph.metadata import DataNames, Scaling, ScalingKind, read_data_names, read_scalings
from hyrt.graph.normalize import Normalize, apply_scaling
from hyrt.graph.partition.manifest import GRAPH, MANIFEST, PartitionManifest, part_folder_name, read_manifest
from hyrt.graph.partition.partitioned_rows import (
    PartitionedFeatures,
    compute_local_ids,
    merge_blocks,
    merge_csr_rows,
)
from hyrt.graph.row_source import DenseFeatures, SparseFeatures

Array = NDArray[Any]

PART_IDS_KEY = "home"
EDGE_KEYS = ("indices", *EDGE_VALUE_KEYS)
"""Keys of arrays that have one entry per edge."""
VERTICES_KEY = "vertices"
_OTHER_PARTS = ", or of another partition"


@dataclass(frozen=True, slots=True)
class PartFiles:
    """Memory-mapped files of one partition."""

    folder: Path
    name: str
    """Name of the folder for messages."""
    manifest: PartitionManifest

    @classmethod
    def open(cls, folder: Path, name: str) -> PartFiles:
        """Open the partition in a folder; raise the errors of `read_manifest`."""
        return cls(folder, name, read_manifest(folder))

    def array(self, file: str, *, verify: bool = True) -> Array:
        """Memory-map a file, given its path in the folder without the suffix `.npy`.

        Without `verify`, only dtype, shape and length are checked, but not the checksums. Raises DataError if
        the file is missing, damaged, or belongs to another partition.
        """
        path, where = f"{file}.npy", f"{self.name}: {file}.npy"
        record = self.manifest.files.get(path)
        if record is None:
            raise DataError(f"{where} is not listed in {MANIFEST}: run hyrt partition again")
        array, header = map_with_header(self.folder / path, where)
        record.check_header(header, where, MANIFEST, _OTHER_PARTS)
        if verify:
            record.verify(array, where, MANIFEST, _OTHER_PARTS)
        return array

    def shared_arrays(self) -> dict[str, Array]:
        """Return the arrays that every rank reads by schema key, and the part of each vertex as `home`."""
        keys = [
            file[len(GRAPH) + 1 : -len(".npy")]
            for file in self.manifest.files
            if file.startswith(f"{GRAPH}/")
        ]
        return {key: self.array(f"{GRAPH}/{key}") for key in keys}

    def names(self) -> DataNames:
        """Read the names of items in the dataset that was partitioned."""
        return read_data_names(self.folder / GRAPH)

    def scaling(self) -> tuple[Scaling, ...]:
        """Return the applied scalings. Old partitions do not have the statistics of `standard`."""
        steps = read_scalings(self.folder / GRAPH).get("", ())
        kind = self.manifest.normalize
        if steps or kind == "none":
            return steps
        return (Scaling(cast(ScalingKind, kind)),)

    def part_array(self, number: int, key: str, *, verify: bool = True) -> Array:
        """Memory-map an array of a part; see `array`."""
        return self.array(f"{part_folder_name(number)}/{key}", verify=verify)

    def part_edges(self, number: int) -> dict[str, Array]:
        """Return the in-edges of a part of a split topology: `indptr` and the keys in `EDGE_KEYS`."""
        keys = [key for key in EDGE_KEYS if f"{part_folder_name(number)}/{key}.npy" in self.manifest.files]
        return {key: self.part_array(number, key) for key in ("indptr", *keys)}

    def part_rows(self, number: int, *, verify: bool = True) -> DenseFeatures | SparseFeatures:
        """Memory-map the feature rows of a part; see `array`."""
        form = self.manifest.features
        if form.kind == "dense":
            return DenseFeatures(self.part_array(number, "features", verify=verify))
        indptr, columns, values = (self.part_array(number, key, verify=verify) for key in SPARSE_KEYS[:3])
        return SparseFeatures(indptr, columns, values, form.width)


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Part of a partition that is opened for a rank."""

    manifest: PartitionManifest
    """Contents of partition.json. Parts of the same partition have equal ids."""
    number: int
    """Index of the part or of the block of parts."""
    graph: Graph
    """Graph with features that are a `PartitionedFeatures` over the rows of this part only.

    The graph has all edges or, if the topology is split, only the in-edges of the part's vertices.
    """
    part_ids: Array
    """Part (or block of parts) of each vertex, [V] integers."""
    local_ids: Array
    """Row of each vertex within its part, [V] int32 or int64."""
    vertices: Array
    """Sorted vertices of this part, [n] int32 or int64."""
    rows: DenseFeatures | SparseFeatures
    """Feature rows of `vertices`, in the same order."""

    __repr__ = short_repr


def open_part(
    folder: str | Path, number: int, *, normalize: Normalize = "none", num_blocks: int | None = None
) -> OpenPart:
    """Open one part: its feature rows, and the files that every rank reads. Other parts may be missing.

    If there are fewer blocks than parts, neighbouring parts are merged to a block, which is opened like one
    part. All files are verified with their checksums, so each file is read once.

    Parameters
    ----------
    folder
        Folder that `hyrt partition` wrote.
    number
        Index of the part or block, counted from 0.
    normalize
        Scaling of features, as for `open_graph`. A rank can scale sparse rows with `row`, `length` and
        `auto`. Any other scaling must be applied when the parts are written.
    num_blocks
        Number of blocks, which must divide the number of parts. By default, each part is one block.

    Raises
    ------
    DataError
        If the part does not exist, if a file is missing, damaged or from another partition, or if a rank
        cannot scale the features.
    """
    name = str(folder)
    files = PartFiles.open(Path(folder).expanduser(), name)
    manifest = files.manifest
    num = manifest.num_parts if num_blocks is None else num_blocks
    if manifest.num_parts % num:
        parts = pluralize(manifest.num_parts, "part")
        raise DataError(
            f"{name} has {parts}, which cannot be merged into {num} blocks: use a divisor of the number of "
            "parts"
        )
    if not 0 <= number < num:
        raise DataError(
            f"{name} has no part {number}, but {pluralize(num, 'part')} numbered from 0: choose one of these"
        )
    arrays = files.shared_arrays()
    homes = arrays.pop(PART_IDS_KEY)
    each = manifest.num_parts // num
    numbers = range(number * each, (number + 1) * each)
    vertices = (
        files.part_array(number, VERTICES_KEY) if each == 1 else np.flatnonzero(homes // each == number)
    )
    # Index within the block of each vertex's part.
    within = np.zeros(len(vertices), np.int64) if each == 1 else homes[vertices].astype(np.int64) - numbers[0]
    homes = homes if each == 1 else homes // each
    places = compute_local_ids(homes, num)
    if manifest.topology == "split":
        edges = [files.part_edges(part) for part in numbers]
        arrays |= edges[0] if each == 1 else _joined_edges(edges, within)
        lengths = np.zeros(len(homes), np.int64)
        lengths[vertices] = np.diff(arrays["indptr"])
        arrays["indptr"] = np.concatenate([[0], np.cumsum(lengths)])
    steps = _steps(normalize, name, files)
    of_parts = [_scaled(files.part_rows(part), steps) for part in numbers]
    rows = of_parts[0] if each == 1 else _joined(of_parts, within)
    graph = build_graph(name, arrays, PartitionedFeatures({number: rows}, homes, places), manifest.symmetric)
    if manifest.topology == "split":
        graph.topology.__dict__["checksum"] = manifest.edges_checksum
    graph = replace(graph, names=files.names(), scalings={"": (*files.scaling(), *steps)})
    return OpenPart(manifest, number, graph, homes, places, vertices, rows)


def _joined_edges(edges: Sequence[Mapping[str, Array]], within: Array) -> dict[str, Array]:
    """Merge the edges of several parts in the order of vertices."""
    keys = [key for key in edges[0] if key != "indptr"]
    pointers = [each["indptr"] for each in edges]
    indptr, joined = merge_csr_rows(pointers, [[each[key] for each in edges] for key in keys], within)
    return {"indptr": indptr, **dict(zip(keys, joined, strict=True))}


def _joined(rows: Sequence[DenseFeatures | SparseFeatures], within: Array) -> DenseFeatures | SparseFeatures:
    """Merge the feature rows of several parts in the order of vertices."""
    dense = [each for each in rows if isinstance(each, DenseFeatures)]
    if dense:
        values = np.empty((len(within), dense[0].width), dense[0].values.dtype)
        for number, each in enumerate(dense):
            values[within == number] = each.values
        return DenseFeatures(values)
    sparse = [each for each in rows if isinstance(each, SparseFeatures)]
    kinds = [[each.columns for each in sparse], [each.values for each in sparse]]
    indptr, (columns, values) = merge_csr_rows([each.indptr for each in sparse], kinds, within)
    return SparseFeatures(indptr, columns, values, sparse[0].width)


def _steps(normalize: Normalize, name: str, files: PartFiles) -> tuple[Scaling, ...]:
    """Return the scalings to apply to the rows of a part, with the same result as scaling the whole graph."""
    form = files.manifest.features
    if normalize == "auto":
        normalize = "length" if form.bags_of_words else "none"
    if normalize == "none" or normalize == files.manifest.normalize:
        return ()
    if normalize == "standard" or form.kind == "dense":
        raise DataError(
            f"{name}: a rank cannot normalize features by {normalize!r}: normalize them when the parts are "
            f"written, with hyrt partition ... --normalize {normalize}"
        )
    return (Scaling(normalize),)


def _scaled(rows: DenseFeatures | SparseFeatures, steps: Sequence[Scaling]) -> DenseFeatures | SparseFeatures:
    if isinstance(rows, DenseFeatures):
        return rows
    arrays = {"feat_indptr": rows.indptr, "feat_values": rows.values}
    return replace(rows, values=apply_scaling(Dataset("", arrays, None), steps).arrays["feat_values"])


def read_parts(folder: Path, name: str, *, check: bool = False) -> Dataset:
    """Open a partition folder as one dataset in the vertex order of the source.

    Dense rows are read from the files of the parts. Sparse rows and the edges of a split topology are merged
    in memory. With `check`, the checksums of features are verified even if all parts together exceed
    `LARGE_BYTES`. Raises DataError if any file is missing, damaged or from another partition.
    """
    files = PartFiles.open(folder, name)
    manifest = files.manifest
    numbers = range(manifest.num_parts)
    arrays = files.shared_arrays()
    homes = arrays.pop(PART_IDS_KEY)
    for number in numbers:
        files.part_array(number, VERTICES_KEY)
    if manifest.topology == "split":
        edges = [files.part_edges(number) for number in numbers]
        keys = [key for key in edges[0] if key != "indptr"]
        arrays["indptr"], joined = merge_csr_rows(
            [each["indptr"] for each in edges], [[each[key] for each in edges] for key in keys], homes
        )
        arrays |= dict(zip(keys, joined, strict=True))
    form = manifest.features
    if form.kind == "sparse":
        pointers, columns, values = (
            [files.part_array(number, key) for number in numbers] for key in SPARSE_KEYS[:3]
        )
        indptr, joined = merge_csr_rows(pointers, [columns, values], homes)
        shape = np.array([manifest.vertices, form.width], np.int64)
        arrays |= dict(zip(SPARSE_KEYS, (indptr, *joined, shape), strict=True))
        return Dataset(name, arrays, None, manifest.symmetric, files.scaling(), files.names())
    num_bytes = manifest.vertices * form.width * np.dtype(form.dtype).itemsize
    matrices = [
        files.part_array(number, "features", verify=check or num_bytes <= LARGE_BYTES) for number in numbers
    ]
    rows = _rows(matrices, homes)
    return Dataset(name, arrays, rows, manifest.symmetric, files.scaling(), files.names())


def _rows(matrices: list[Array], homes: Array) -> FeatureRows:
    width, dtype = int(matrices[0].shape[1]), matrices[0].dtype
    source = PartitionedFeatures(
        {number: DenseFeatures(matrix) for number, matrix in enumerate(matrices)},
        homes,
        compute_local_ids(homes, len(matrices)),
    )
    step = rows_per_chunk((width,), dtype)
    streamed = FeatureRows.from_blocks(
        (len(homes), width), dtype, lambda: merge_blocks(matrices, homes, step)
    )
    return replace(streamed, source=source)
