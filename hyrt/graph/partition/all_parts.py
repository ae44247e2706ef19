"""Opening of all parts of a partition as one dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.formats.npy import rows_per_chunk
from hyrt.graph.formats.schema import LARGE_BYTES, SPARSE_KEYS, Dataset, FeatureRows
from hyrt.graph.partition.dealt_rows import joined_blocks, joined_rows, places_of
from hyrt.graph.partition.part_files import HOME, VERTICES, PartFiles
from hyrt.graph.partition.parted_rows import PartedRows
from hyrt.graph.row_source import DenseFeatures

Array = NDArray[Any]


def read_parts(folder: Path, name: str, *, check: bool = False) -> Dataset:
    """Open a folder that `hyrt partition` wrote as one dataset, in the source's order of vertices.

    Dense rows stay in the files of the parts. Sparse rows, and edges that are split among the parts, are put
    together in memory.

    Parameters
    ----------
    folder
        The folder.
    name
        The name of the dataset, for messages.
    check
        Also compare features with their checksums where all parts of them have more than `LARGE_BYTES`.

    Raises
    ------
    DataError
        If any file is missing, damaged, or of another partition: names it.
    """
    files = PartFiles.of(folder, name)
    manifest = files.manifest
    numbers = range(manifest.num_parts)
    arrays = files.shared_arrays()
    homes = arrays.pop(HOME)
    for number in numbers:
        files.part_array(number, VERTICES)
    if manifest.topology == "split":
        edges = [files.part_edges(number) for number in numbers]
        keys = [key for key in edges[0] if key != "indptr"]
        arrays["indptr"], joined = joined_rows(
            [each["indptr"] for each in edges], [[each[key] for each in edges] for key in keys], homes
        )
        arrays |= dict(zip(keys, joined, strict=True))
    form = manifest.features
    if form.kind == "sparse":
        pointers, columns, values = (
            [files.part_array(number, key) for number in numbers] for key in SPARSE_KEYS[:3]
        )
        indptr, joined = joined_rows(pointers, [columns, values], homes)
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
    source = PartedRows(
        {number: DenseFeatures(matrix) for number, matrix in enumerate(matrices)},
        homes,
        places_of(homes, len(matrices)),
    )
    step = rows_per_chunk((width,), dtype)
    streamed = FeatureRows.streamed((len(homes), width), dtype, lambda: joined_blocks(matrices, homes, step))
    return replace(streamed, source=source)
