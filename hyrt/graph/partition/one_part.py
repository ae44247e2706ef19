"""One part of a graph, opened for the rank that trains with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.schema import Dataset, graph_of
from hyrt.graph.graph import Graph
from hyrt.graph.normalize import Normalize, scaled
from hyrt.graph.partition.dealt_rows import places_of
from hyrt.graph.partition.manifest import PartitionManifest
from hyrt.graph.partition.part_files import HOME, VERTICES, PartFiles
from hyrt.graph.partition.parted_rows import PartedRows
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.quantities import counted, one_line

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OpenPart:
    """What a rank has of a graph in parts."""

    manifest: PartitionManifest
    """What partition.json says; ranks that have the same `id` have parts of the same partition."""
    number: int
    """The part that is here."""
    graph: Graph
    """The graph, with the rows of this part alone: its features are a `PartedRows`. All edges, or of split
    topology those into the vertices of this part; others seem to have none."""
    homes: Array
    """[V] uint8 or uint16, the part of each vertex."""
    places: Array
    """[V] int32 or int64, the row of each vertex among those of its part."""
    vertices: Array
    """[n] int32 or int64, the vertices of this part, sorted."""
    rows: DenseFeatures | SparseFeatures
    """[n] their feature rows, in that order."""

    __repr__ = one_line


def open_part(folder: str | Path, number: int, *, normalize: Normalize = "none") -> OpenPart:
    """Open what every rank reads, and the feature rows of one part; no other part need be here.

    All of it is compared with its checksums, which reads it once.

    Parameters
    ----------
    folder
        A folder that `hyrt partition` wrote.
    number
        The number of the part, from 0.
    normalize
        How to scale the features, as for `open_graph`. A rank scales sparse rows by `row`, `length` and
        `auto`; anything else is done when the parts are written.

    Raises
    ------
    DataError
        If there is no such part; a file is missing, damaged, or of another partition (named); or the features
        cannot be scaled here.
    """
    name = str(folder)
    files = PartFiles.of(Path(folder).expanduser(), name)
    manifest = files.manifest
    if not 0 <= number < manifest.num_parts:
        raise DataError(
            f"{name}: there is no part {number}: it has {counted(manifest.num_parts, 'part')}, numbered "
            "from 0"
        )
    arrays = files.shared_arrays()
    homes = arrays.pop(HOME)
    places = places_of(homes, manifest.num_parts)
    vertices = files.part_array(number, VERTICES)
    if manifest.topology == "split":
        arrays |= files.part_edges(number)
        lengths = np.zeros(len(homes), np.int64)
        lengths[vertices] = np.diff(arrays["indptr"])
        arrays["indptr"] = np.concatenate([[0], np.cumsum(lengths)])
    rows = _scaled(files.part_rows(number), normalize, name, manifest)
    graph = graph_of(name, arrays, PartedRows({number: rows}, homes, places), manifest.symmetric)
    return OpenPart(manifest, number, graph, homes, places, vertices, rows)


def _scaled(
    rows: DenseFeatures | SparseFeatures, normalize: Normalize, name: str, manifest: PartitionManifest
) -> DenseFeatures | SparseFeatures:
    """The rows of a part, scaled as all rows would be."""
    if normalize == "auto":
        normalize = "length" if manifest.features.bags_of_words else "none"
    if normalize in ("none", manifest.normalize):
        return rows
    if normalize == "standard" or isinstance(rows, DenseFeatures):
        raise DataError(
            f"{name}: a rank cannot scale features by normalize {normalize!r}: scale them when the parts are "
            f"written, with hyrt partition ... --normalize {normalize}"
        )
    arrays = {"feat_indptr": rows.indptr, "feat_values": rows.values}
    return replace(rows, values=scaled(Dataset(name, arrays, None), normalize).arrays["feat_values"])
