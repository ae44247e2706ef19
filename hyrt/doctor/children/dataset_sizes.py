"""How large a run's dataset is, from headers, names and published sizes; no rows or edges are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.sizes.datasets import DATASETS
from hyrt_perfmodel.sizes.degrees import DegreeDistribution

from hyrt.errors import DataError
from hyrt.graph.formats.folder import map_npy
from hyrt.graph.formats.npy import NpyHeader, read_header
from hyrt.graph.formats.npz import NpzMember, member_sizes
from hyrt.graph.formats.schema import check_header, wanted_keys
from hyrt.graph.source import KINDS, SYNTHETIC
from hyrt.predict.dataset_sizes import DatasetSizes, generated_sizes, published_sizes

_PIECE = 1 << 20


class SizesUnknown(Exception):
    """A dataset may be fine, but nothing can be said of its size before it is opened."""


def dataset_sizes(source: str, split: int, normalize: str) -> DatasetSizes:
    """The sizes of a dataset.

    Parameters
    ----------
    source, split, normalize
        As in the settings' section `data`.

    Raises
    ------
    DataError
        If it is not there, is damaged where it was read, cannot be downloaded, or its size is published
        nowhere.
    """
    if source.startswith(SYNTHETIC):
        return generated_sizes(source)
    path = Path(os.path.expanduser(source))
    if path.is_file() or (
        path.is_dir() and not (path / "raw").is_dir() and not (path / "processed").is_dir()
    ):
        return _stored(path, source, split, normalize)
    if path.is_dir() or source == "mag240m" or source.startswith("ogbn-"):
        return _published(source, path)
    raise DataError(f"{source}: no such file or folder; a dataset is {KINDS}")


def _published(source: str, path: Path) -> DatasetSizes:
    from hyrt.graph.formats.ogb_layout import find_folder

    folder = find_folder(source)
    there = folder.is_dir()
    if not there:
        try:
            metadata.version("ogb")
        except metadata.PackageNotFoundError:
            raise DataError(
                f"{source}: not found in {folder}, and the ogb package, which downloads it, is missing"
            ) from None
    known = DATASETS.get(source)
    if known is None:
        raise SizesUnknown(f"{folder if there else source}: hyrt does not know its sizes")
    return published_sizes(
        known,
        symmetrized=True,
        found=f"{folder}" if there else f"{source}, which the run will download to {folder}",
    )


def _stored(path: Path, source: str, split: int, normalize: str) -> DatasetSizes:
    """A .npz file or a folder of the schema: headers, and of the arrays the labels and one mask."""
    is_folder = path.is_dir()
    names = (
        sorted(file.stem for file in path.glob("*.npy")) if is_folder else list(member_sizes(path, source))
    )
    headers: dict[str, NpyHeader] = {}
    for key in wanted_keys(source, names):
        headers[key] = _header(path, key, source)
        check_header(source, key, headers[key].dtype, headers[key].shape)
    vertices, edges = headers["indptr"].shape[0] - 1, headers["indices"].shape[0]
    if vertices < 1:
        raise DataError(f"{source}: key 'indptr': has no vertices")
    sparse = "features" not in headers
    entries = headers["feat_values"].shape[0] if sparse else 0
    topology = headers["indices"].data_bytes + headers["indptr"].data_bytes
    if not sparse:
        width, value_bytes = headers["features"].shape[1], headers["features"].dtype.itemsize
        rows_bytes = headers["features"].data_bytes
    else:
        width, value_bytes = int(_array(path, "feat_shape", source)[1]), 4
        rows_bytes = sum(headers[key].data_bytes for key in ("feat_indptr", "feat_indices", "feat_values"))
    mapped = is_folder and normalize == "none"
    return DatasetSizes(
        found=f"{path}, {vertices:,} vertices, {edges:,} edges",
        degrees=DegreeDistribution.assumed(vertices, edges, num_targets=None),
        features=width,
        classes=_classes(path, source),
        targets=_targets(path, source, split),
        value_bytes=value_bytes,
        feature_bytes=0.0
        if mapped
        else float(vertices) * width * 4
        if normalize != "none" and not sparse
        else float(rows_bytes),
        graph_bytes=0.0 if is_folder else float(topology),
        mapped_bytes=float(rows_bytes * mapped + topology * is_folder),
        row_entries=entries / vertices if sparse else None,
    )


def _header(path: Path, key: str, source: str) -> NpyHeader:
    if not path.is_dir():
        return NpzMember(path, key, source).header
    file = path / f"{key}.npy"
    where = f"{source}: key '{key}'"
    try:
        with file.open("rb") as stream:
            header = read_header(stream, where)
            held = file.stat().st_size - header.offset
    except OSError as error:
        raise DataError(f"{where}: cannot be read ({error.strerror or error})") from error
    if held != header.data_bytes:
        raise DataError(
            f"{where}: needs {header.data_bytes:,} bytes, but the file has {held:,}: damaged or truncated"
        )
    return header


def _array(path: Path, key: str, source: str) -> Any:
    return map_npy(path / f"{key}.npy") if path.is_dir() else NpzMember(path, key, source).read()


def _classes(path: Path, source: str) -> int:
    """One more than the largest label, piece by piece."""
    if path.is_dir():
        labels = map_npy(path / "labels.npy")
        pieces = (labels[start : start + _PIECE] for start in range(0, len(labels), _PIECE))
        return 1 + max((int(piece.max()) for piece in pieces), default=0)
    return 1 + max(
        (int(piece.max()) for piece in NpzMember(path, "labels", source).pieces(_PIECE)), default=0
    )


def _targets(path: Path, source: str, split: int) -> int:
    mask = _array(path, "train_mask", source)
    if mask.ndim == 2:
        if split >= mask.shape[1]:
            raise DataError(
                f"{source}: data.split={split}: the dataset has {mask.shape[1]} splits, numbered from 0"
            )
        mask = mask[:, split]
    return int(np.count_nonzero(mask))


def to_json(sizes: DatasetSizes) -> Mapping[str, Any]:
    """For the doctor's figures."""
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
