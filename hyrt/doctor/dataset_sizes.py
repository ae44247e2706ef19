"""Size of a dataset from file headers, names, partition.json and published sizes, without its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.degrees import DATASETS, DegreeDistribution

from hyrt.errors import DataError
from hyrt.formatting import pluralize
from hyrt.graph.bundled import resolve_source
from hyrt.graph.formats.dataset_files import NpzMember, member_sizes
from hyrt.graph.formats.dgl import is_dgl_file
from hyrt.graph.formats.npy import NpyHeader, map_npy, map_with_header
from hyrt.graph.formats.ogb_dataset import HETERO_SUFFIX
from hyrt.graph.formats.schema import SCALE_KEYS, check_header, select_keys
from hyrt.graph.hetero.graph_types import TEXT_KEYS, VERTEX_TYPES
from hyrt.graph.labels import count_outputs
from hyrt.graph.partition.manifest import GRAPH, is_partition
from hyrt.graph.partition.read_parts import EDGE_KEYS, PartFiles
from hyrt.graph.quantized.dataset import is_quantized_dtype
from hyrt.graph.source import KINDS, SYNTHETIC
from hyrt.graph.synthetic.spec import parse_spec
from hyrt.predict.dataset_sizes import DatasetSizes, generated_sizes, published_sizes


def read_partition_sizes(path: Path, source: str, split: int, normalize: str) -> DatasetSizes:
    """Return the sizes of a partitioned dataset that one process opens; each one of several ranks needs less.

    Raises DataError if the files are incomplete or inconsistent, or the split does not exist.
    """
    files = PartFiles.open(path, source)
    manifest, stored_bytes = files.manifest, dict.fromkeys(("features", "edges"), 0)
    for file in manifest.files:
        array = files.array(file.removesuffix(".npy"), verify=False)
        key = Path(file).stem
        if key.startswith("feat"):
            stored_bytes["features"] += array.nbytes
        elif key in (*EDGE_KEYS, "indptr"):
            stored_bytes["edges"] += array.nbytes
    mask = files.array(f"{GRAPH}/train_mask", verify=False)
    if mask.ndim == 2:
        if split >= mask.shape[1]:
            raise DataError(
                f"{source} has no split {split}, only {pluralize(mask.shape[1], 'split')}: set "
                f"data.split from 0 to {mask.shape[1] - 1}"
            )
        mask = mask[:, split]
    form, is_whole = manifest.features, manifest.topology == "replicated"
    sparse = form.kind == "sparse"
    scales = not sparse and normalize not in ("none", "auto", manifest.normalize)
    in_memory = float(manifest.vertices) * form.width * 4 if scales else stored_bytes["features"] * sparse
    entries = sum(files.manifest.files[file].shape[0] for file in manifest.files if "feat_values" in file)
    return DatasetSizes(
        location=f"{path}, {manifest.vertices:,} vertices, {manifest.edges:,} edges in "
        f"{pluralize(manifest.num_parts, 'part')}",
        degrees=DegreeDistribution.assumed(manifest.vertices, manifest.edges, num_targets=None),
        features=form.width,
        classes=count_outputs(files.array(f"{GRAPH}/labels", verify=False)),
        targets=int(np.count_nonzero(mask)),
        value_bytes=np.dtype(form.dtype).itemsize,
        feature_bytes=float(in_memory),
        graph_bytes=0.0 if is_whole else float(stored_bytes["edges"]),
        mapped_bytes=float(
            (0 if sparse or scales else stored_bytes["features"]) + stored_bytes["edges"] * is_whole
        ),
        row_entries=entries / manifest.vertices if sparse else None,
    )


_HETERO_REASON = "the sizes of a heterogeneous graph are only known after it is opened"


class SizesUnknownError(Exception):
    """Error for a dataset whose size is known only after it is opened."""


def read_dataset_sizes(source: str, split: int, normalize: str) -> DatasetSizes:
    """Return the sizes of a dataset; `split` and `normalize` are settings of the section `data`.

    Raises DataError if the dataset does not exist, cannot be downloaded or is damaged, and SizesUnknownError
    if its sizes are known only after it is opened.
    """
    if source.startswith(SYNTHETIC):
        if parse_spec(source).is_hetero:
            raise SizesUnknownError(f"{source}: {_HETERO_REASON}")
        return generated_sizes(source)
    path = resolve_source(source)
    if is_partition(path):
        return read_partition_sizes(path, source, split, normalize)
    if is_dgl_file(path):
        raise SizesUnknownError(f"the sizes of the DGL graph in {path} are only known after it is opened")
    if path.is_file() or (
        path.is_dir() and not (path / "raw").is_dir() and not (path / "processed").is_dir()
    ):
        return _stored_sizes(path, source, split, normalize)
    if source.endswith(HETERO_SUFFIX):
        raise SizesUnknownError(f"{source}: {_HETERO_REASON}")
    if path.is_dir() or source == "mag240m" or source.startswith("ogbn-"):
        return _published_sizes(source, path)
    raise DataError(f"{source}: no such file or folder; a dataset is {KINDS}")


def _published_sizes(source: str, path: Path) -> DatasetSizes:
    from hyrt.graph.formats.ogb_files import find_ogb_folder

    folder = find_ogb_folder(source)
    exists = folder.is_dir()
    if not exists:
        try:
            metadata.version("ogb")
        except metadata.PackageNotFoundError:
            raise DataError(
                f"{source} was not found in {folder}, and the ogb package, which downloads it, is "
                "not installed: install it (pip install ogb)"
            ) from None
    published = DATASETS.get(source)
    if published is None:
        raise SizesUnknownError(f"hyrt cannot determine the sizes of {folder if exists else source}")
    return published_sizes(
        published,
        symmetrized=True,
        location=f"{folder}" if exists else f"{source}, which the run will download to {folder}",
    )


def _stored_sizes(path: Path, source: str, split: int, normalize: str) -> DatasetSizes:
    """Read the sizes of a .npz file or a folder of .npy files from headers, labels and one mask."""
    is_folder = path.is_dir()
    names = (
        sorted(file.stem for file in path.glob("*.npy")) if is_folder else list(member_sizes(path, source))
    )
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, Any] = {}
    item_bytes: dict[str, int] = {}
    for key in select_keys(source, names):
        # Mapping a file reads no data, but detects a truncated file.
        stored: NpyHeader
        if is_folder:
            _, stored = map_with_header(
                path / f"{key}.npy", f"{source}: key '{key}'", is_text=key in TEXT_KEYS
            )
        else:
            stored = NpzMember(path, key, source).header
        check_header(source, key, stored.dtype, stored.shape)
        shapes[key], dtypes[key], item_bytes[key] = stored.shape, stored.dtype, stored.dtype.itemsize
    if VERTEX_TYPES in shapes:
        raise SizesUnknownError(f"{path}: {_HETERO_REASON}")
    vertices, edges = shapes["indptr"][0] - 1, shapes["indices"][0]
    if vertices < 1:
        raise DataError(f"{source} has no vertices (key 'indptr'): use a graph with vertices")

    def total_bytes(*keys: str) -> int:
        return sum(math.prod(shapes[key]) * item_bytes[key] for key in keys)

    sparse, quantized = "features" not in shapes, False
    topology = total_bytes("indices", "indptr")
    if sparse:
        width, value_bytes = int(_read_array(path, "feat_shape", source)[1]), 4
        rows_bytes = total_bytes("feat_indptr", "feat_indices", "feat_values")
    else:
        width, value_bytes = shapes["features"][1], item_bytes["features"]
        quantized = is_quantized_dtype(dtypes["features"])
        rows_bytes = total_bytes("features", *(key for key in SCALE_KEYS if key in shapes))
    # `auto` scales only sparse features, and leaves dense features unchanged.
    scales = normalize != "none" and (sparse or normalize != "auto")
    mapped = is_folder and not scales
    return DatasetSizes(
        location=f"{path}, {vertices:,} vertices, {edges:,} edges",
        degrees=DegreeDistribution.assumed(vertices, edges, num_targets=None),
        features=width,
        classes=count_outputs(_read_array(path, "labels", source)),
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
                f"{source} has no split {split}, only {pluralize(mask.shape[1], 'split')}: set "
                f"data.split from 0 to {mask.shape[1] - 1}"
            )
        mask = mask[:, split]
    return int(np.count_nonzero(mask))


def sizes_to_json(sizes: DatasetSizes) -> Mapping[str, Any]:
    """Convert the sizes to the `figures` of a finding."""
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
