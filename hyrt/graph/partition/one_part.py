"""Opening of one part for the rank that trains on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.schema import Dataset, graph_of
from hyrt.graph.graph import Graph
from hyrt.graph.normalize import Normalize, apply_scaling
from hyrt.graph.partition.dealt_rows import joined_rows, places_of
from hyrt.graph.partition.manifest import PartitionManifest
from hyrt.graph.partition.part_files import HOME, VERTICES, PartFiles
from hyrt.graph.partition.parted_rows import PartedRows
from hyrt.graph.reuse.scaling import Scaling
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.quantities import counted, one_line

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Part of a partition that a rank has opened."""

    manifest: PartitionManifest
    """What partition.json says; ranks that have the same `id` have parts of the same partition."""
    number: int
    """The part that is here, or the block of parts."""
    graph: Graph
    """The graph, with the rows of this part alone: its features are a `PartedRows`. All edges, or of split
    topology those into the vertices of this part; others seem to have none."""
    homes: Array
    """[V] integers, the part of each vertex, or its block of parts."""
    places: Array
    """[V] int32 or int64, the row of each vertex among those of its part."""
    vertices: Array
    """[n] int32 or int64, the vertices of this part, sorted."""
    rows: DenseFeatures | SparseFeatures
    """[n] their feature rows, in that order."""

    __repr__ = one_line


def open_part(
    folder: str | Path, number: int, *, normalize: Normalize = "none", num_blocks: int | None = None
) -> OpenPart:
    """Open what every rank reads, and the feature rows of one part; no other part need be here.

    Several parts are opened as one where there are fewer blocks than parts: neighbouring parts make a block.

    All of it is compared with its checksums, which reads it once.

    Parameters
    ----------
    folder
        A folder that `hyrt partition` wrote.
    number
        The number of the part, from 0, or of the block.
    normalize
        How to scale the features, as for `open_graph`. A rank scales sparse rows by `row`, `length` and
        `auto`; anything else is done when the parts are written.
    num_blocks
        How many blocks the parts make: a divisor of their number. By default each part is one.

    Raises
    ------
    DataError
        If there is no such part; a file is missing, damaged, or of another partition (named); or the features
        cannot be scaled here.
    """
    name = str(folder)
    files = PartFiles.of(Path(folder).expanduser(), name)
    manifest = files.manifest
    num = manifest.num_parts if num_blocks is None else num_blocks
    if manifest.num_parts % num:
        parts = counted(manifest.num_parts, "part")
        raise DataError(f"{name}: has {parts}, which cannot make {num} blocks: give a number that divides it")
    if not 0 <= number < num:
        raise DataError(f"{name}: there is no part {number}: it has {counted(num, 'part')}, numbered from 0")
    arrays = files.shared_arrays()
    homes = arrays.pop(HOME)
    each = manifest.num_parts // num
    numbers = range(number * each, (number + 1) * each)
    vertices = files.part_array(number, VERTICES) if each == 1 else np.flatnonzero(homes // each == number)
    # Which of its parts each vertex is in.
    within = np.zeros(len(vertices), np.int64) if each == 1 else homes[vertices].astype(np.int64) - numbers[0]
    homes = homes if each == 1 else homes // each
    places = places_of(homes, num)
    if manifest.topology == "split":
        edges = [files.part_edges(part) for part in numbers]
        arrays |= edges[0] if each == 1 else _joined_edges(edges, within)
        lengths = np.zeros(len(homes), np.int64)
        lengths[vertices] = np.diff(arrays["indptr"])
        arrays["indptr"] = np.concatenate([[0], np.cumsum(lengths)])
    steps = _steps(normalize, name, files)
    of_parts = [_scaled(files.part_rows(part), steps) for part in numbers]
    rows = of_parts[0] if each == 1 else _joined(of_parts, within)
    graph = graph_of(name, arrays, PartedRows({number: rows}, homes, places), manifest.symmetric)
    graph = replace(graph, names=files.names(), scalings={"": (*files.scaling(), *steps)})
    return OpenPart(manifest, number, graph, homes, places, vertices, rows)


def _joined_edges(edges: Sequence[Mapping[str, Array]], within: Array) -> dict[str, Array]:
    """Merge the edges of several parts in vertex order."""
    keys = [key for key in edges[0] if key != "indptr"]
    pointers = [each["indptr"] for each in edges]
    indptr, joined = joined_rows(pointers, [[each[key] for each in edges] for key in keys], within)
    return {"indptr": indptr, **dict(zip(keys, joined, strict=True))}


def _joined(rows: Sequence[DenseFeatures | SparseFeatures], within: Array) -> DenseFeatures | SparseFeatures:
    """Merge the feature rows of several parts in vertex order."""
    dense = [each for each in rows if isinstance(each, DenseFeatures)]
    if dense:
        values = np.empty((len(within), dense[0].width), dense[0].values.dtype)
        for number, each in enumerate(dense):
            values[within == number] = each.values
        return DenseFeatures(values)
    sparse = [each for each in rows if isinstance(each, SparseFeatures)]
    kinds = [[each.columns for each in sparse], [each.values for each in sparse]]
    indptr, (columns, values) = joined_rows([each.indptr for each in sparse], kinds, within)
    return SparseFeatures(indptr, columns, values, sparse[0].width)


def _steps(normalize: Normalize, name: str, files: PartFiles) -> tuple[Scaling, ...]:
    """Return the scalings to apply to the rows of a part, which equal those of the whole graph."""
    form = files.manifest.features
    if normalize == "auto":
        normalize = "length" if form.bags_of_words else "none"
    if normalize == "none" or normalize == files.manifest.normalize:
        return ()
    if normalize == "standard" or form.kind == "dense":
        raise DataError(
            f"{name}: a rank cannot scale features by normalize {normalize!r}: scale them when the parts are "
            f"written, with hyrt partition ... --normalize {normalize}"
        )
    return (Scaling(normalize),)


def _scaled(rows: DenseFeatures | SparseFeatures, steps: Sequence[Scaling]) -> DenseFeatures | SparseFeatures:
    if isinstance(rows, DenseFeatures):
        return rows
    arrays = {"feat_indptr": rows.indptr, "feat_values": rows.values}
    return replace(rows, values=apply_scaling(Dataset("", arrays, None), steps).arrays["feat_values"])
