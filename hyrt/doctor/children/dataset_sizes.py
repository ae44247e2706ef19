"""Size of a run's dataset from file headers, names and published sizes; rows and edges are not read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.sizes.datasets import DATASETS
from hyrt_perfmodel.sizes.degrees import DegreeDistribution

from hyrt.errors import DataError
from hyrt.graph.bundled import path_of
from hyrt.graph.formats.npy import NpyHeader
from hyrt.graph.formats.npz import NpzMember, member_sizes
from hyrt.graph.formats.objects.dgl_file import is_dgl_file
from hyrt.graph.formats.ogb.ogb_types import SUFFIX
from hyrt.graph.formats.recorded_npy import map_npy, map_with_header
from hyrt.graph.formats.schema import SCALE_KEYS, check_header, wanted_keys
from hyrt.graph.labels.label_kind import num_outputs
from hyrt.graph.narrow.coded_dataset import are_codes
from hyrt.graph.partition.manifest import is_partition
from hyrt.graph.source import KINDS, SYNTHETIC
from hyrt.graph.synthetic.spec import parse_spec
from hyrt.graph.typed.typed_keys import TEXT_KEYS, VERTEX_TYPES
from hyrt.predict.dataset_sizes import DatasetSizes, generated_sizes, published_sizes
from hyrt.quantities import counted

_HETERO_REASON = "the sizes of a graph with types of vertices are known once it is opened"


class SizesUnknown(Exception):
    """The size of a dataset cannot be determined before it is opened."""


def dataset_sizes(source: str, split: int, normalize: str) -> DatasetSizes:
    """Return the sizes of a dataset.

    Parameters
    ----------
    source, split, normalize
        The settings `data.source`, `data.split` and `data.normalize`.

    Raises
    ------
    DataError
        If the dataset does not exist or cannot be downloaded, or if a file that was read is damaged.
    SizesUnknown
        If the sizes are known only after the dataset is opened.
    """
    if source.startswith(SYNTHETIC):
        if parse_spec(source).typed:
            raise SizesUnknown(f"{source}: {_HETERO_REASON}")
        return generated_sizes(source)
    path = path_of(source)
    if is_partition(path):
        from hyrt.doctor.children.parted_sizes import parted_sizes

        return parted_sizes(path, source, split, normalize)
    if is_dgl_file(path):
        raise SizesUnknown(f"{path}: the sizes of a graph of DGL are known once it is opened")
    if path.is_file() or (
        path.is_dir() and not (path / "raw").is_dir() and not (path / "processed").is_dir()
    ):
        return _stored_sizes(path, source, split, normalize)
    if source.endswith(SUFFIX):
        raise SizesUnknown(f"{source}: {_HETERO_REASON}")
    if path.is_dir() or source == "mag240m" or source.startswith("ogbn-"):
        return _published_sizes(source, path)
    raise DataError(f"{source}: no such file or folder; a dataset is {KINDS}")


def _published_sizes(source: str, path: Path) -> DatasetSizes:
    from hyrt.graph.formats.ogb_download import find_folder

    folder = find_folder(source)
    exists = folder.is_dir()
    if not exists:
        try:
            metadata.version("ogb")
        except metadata.PackageNotFoundError:
            raise DataError(
                f"{source}: not found in {folder}, and the ogb package, which downloads it, is "
                "missing: install it (pip install ogb)"
            ) from None
    published = DATASETS.get(source)
    if published is None:
        raise SizesUnknown(f"{folder if exists else source}: hyrt does not know its sizes")
    return published_sizes(
        published,
        symmetrized=True,
        found=f"{folder}" if exists else f"{source}, which the run will download to {folder}",
    )


def _stored_sizes(path: Path, source: str, split: int, normalize: str) -> DatasetSizes:
    """Read the sizes of a .npz file or a folder of .npy files: headers, and as arrays only the labels and a
    mask.
    """
    is_folder = path.is_dir()
    names = (
        sorted(file.stem for file in path.glob("*.npy")) if is_folder else list(member_sizes(path, source))
    )
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, Any] = {}
    item_bytes: dict[str, int] = {}
    for key in wanted_keys(source, names):
        # Mapping a file reads no data, but detects a truncated file.
        stored: NpyHeader
        if is_folder:
            _, stored = map_with_header(path / f"{key}.npy", f"{source}: key '{key}'", texts=key in TEXT_KEYS)
        else:
            stored = NpzMember(path, key, source).header
        check_header(source, key, stored.dtype, stored.shape)
        shapes[key], dtypes[key], item_bytes[key] = stored.shape, stored.dtype, stored.dtype.itemsize
    if VERTEX_TYPES in shapes:
        raise SizesUnknown(f"{path}: {_HETERO_REASON}")
    vertices, edges = shapes["indptr"][0] - 1, shapes["indices"][0]
    if vertices < 1:
        raise DataError(f"{source}: key 'indptr' has no vertices: give a graph that has some")

    def total_bytes(*keys: str) -> int:
        return sum(math.prod(shapes[key]) * item_bytes[key] for key in keys)

    sparse, quantized = "features" not in shapes, False
    topology = total_bytes("indices", "indptr")
    if sparse:
        width, value_bytes = int(_read_array(path, "feat_shape", source)[1]), 4
        rows_bytes = total_bytes("feat_indptr", "feat_indices", "feat_values")
    else:
        width, value_bytes = shapes["features"][1], item_bytes["features"]
        quantized = are_codes(dtypes["features"])
        rows_bytes = total_bytes("features", *(key for key in SCALE_KEYS if key in shapes))
    # `auto` scales sparse features only; dense features stay as they are.
    scales = normalize != "none" and (sparse or normalize != "auto")
    mapped = is_folder and not scales
    return DatasetSizes(
        found=f"{path}, {vertices:,} vertices, {edges:,} edges",
        degrees=DegreeDistribution.assumed(vertices, edges, num_targets=None),
        features=width,
        classes=num_outputs(_read_array(path, "labels", source)),
        targets=_count_targets(path, source, split),
        value_bytes=4 if quantized else value_bytes,
        row_bytes=float(rows_bytes) / vertices if quantized else None,
        feature_bytes=0.0
        if mapped
        else float(vertices) * width * 4
        if scales and not sparse
        else float(rows_bytes),
        graph_bytes=0.0 if is_folder else float(topology),
        mapped_bytes=float(rows_bytes * mapped + topology * is_folder),
        row_entries=shapes["feat_values"][0] / vertices if sparse else None,
    )


def _read_array(path: Path, key: str, source: str) -> Any:
    return map_npy(path / f"{key}.npy") if path.is_dir() else NpzMember(path, key, source).read()


def _count_targets(path: Path, source: str, split: int) -> int:
    mask = _read_array(path, "train_mask", source)
    if mask.ndim == 2:
        if split >= mask.shape[1]:
            raise DataError(
                f"{source}: data.split={split}: the dataset has "
                f"{counted(mask.shape[1], 'split')}, numbered from 0"
            )
        mask = mask[:, split]
    return int(np.count_nonzero(mask))


def to_json(sizes: DatasetSizes) -> Mapping[str, Any]:
    """Return the sizes as JSON values for the finding's figures."""
    assert sizes.degrees is not None
    return {
        "vertices": round(sizes.degrees.num_vertices),
        "edges": round(sizes.degrees.num_edges),
        "features": sizes.features,
        "classes": sizes.classes,
        "targets": sizes.targets,
        "memory_bytes": round(sizes.feature_bytes + sizes.graph_bytes),
        "mapped_bytes": round(sizes.mapped_bytes),
    }
