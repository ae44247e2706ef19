"""Dataset folder: one memory-mapped .npy file per key, and a meta.json with checksums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hyrt.errors import DataError
from hyrt.graph.formats.npy import (
    CHUNK_BYTES,
    NpyChecksums,
    map_with_header,
    read_npy_shape,
    write_blocks,
    write_npy,
)
from hyrt.graph.formats.schema import (
    LARGE_BYTES,
    Dataset,
    FeatureRows,
    assemble_hetero_dataset,
    check_header,
    check_unused_keys,
    feature_tables,
    select_keys,
)
from hyrt.graph.hetero.graph_types import TEXT_KEYS, VERTEX_TYPES, strip_type
from hyrt.graph.quantized.dataset import (
    QuantizedRowWriter,
    check_no_scales,
    is_quantized_dtype,
    read_quantized_rows,
)
from hyrt.graph.topology import Topology
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers

Array = NDArray[Any]

META = "meta.json"
FORMAT = 1


def read_folder(path: Path, source: str, *, check: bool = False) -> Dataset:
    """Map a folder of .npy files and verify them against the checksums in meta.json, if it exists.

    The arrays are private, writable views: writing to them never changes the file. With `check`, features
    larger than `LARGE_BYTES` are also verified; otherwise they are not read. Raises DataError if a key is
    missing or a file is damaged, with the rows of the first chunk that differs.
    """
    files = sorted(path.glob("*.npy"))
    if not files:
        hint = " (did you mean one of its .npz files?)" if any(path.glob("*.npz")) else ""
        raise DataError(f"{source} has no .npy files: a dataset folder has one .npy file per key{hint}")
    for file in (*files, path / META):
        # Opening a pipe would block until another process writes to it.
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise DataError(f"{file}: a pipe or a device: put the dataset's file in its place")
    keys = select_keys(source, [file.stem for file in files])
    check_unused_keys(source, {file.stem: read_npy_shape(file) for file in files}, keys)
    meta = _read_meta(path)
    entries = {} if meta is None else meta.keys
    for key in entries:
        if key not in keys:
            raise DataError(
                f"{source}: key '{key}' is in {META} but has no file: put {key}.npy back, or "
                "write the folder again"
            )
    arrays: dict[str, Array] = {}
    features: dict[str, Array] = {}
    for key in keys:
        location = f"{source}: key '{key}'"
        array, header = map_with_header(path / f"{key}.npy", location, is_text=key in TEXT_KEYS)
        check_header(source, key, header.dtype, header.shape)
        if meta is not None:
            if key not in entries:
                raise DataError(f"{location} is not in {META}: the folder was changed after it was written")
            entries[key].check_header(header, location, META)
            if check or strip_type(key) != "features" or array.nbytes <= LARGE_BYTES:
                entries[key].verify(array, location, META, f" (without {META}, the folder opens unverified)")
        (features if strip_type(key) == "features" else arrays)[key] = array
    symmetric = None if meta is None else meta.symmetric

    def rows_of(key: str, name: str, arrays: dict[str, Array]) -> FeatureRows | None:
        if key not in features:
            return None
        if is_quantized_dtype(features[key].dtype):
            return read_quantized_rows(name, features[key], arrays)
        check_no_scales(name, features[key].dtype, arrays)
        return FeatureRows.from_array(features[key], mapped=True)

    if VERTEX_TYPES in arrays:
        return replace(assemble_hetero_dataset(source, keys, arrays, rows_of), symmetric=symmetric)
    return Dataset(source, arrays, rows_of("features", source, arrays), symmetric)


class _Meta(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int
    crc32_chunk_bytes: int | None = None
    symmetric: bool | None = None
    """Whether the edges are their own transpose; None in folders of older versions."""
    keys: dict[str, NpyChecksums]


def _read_meta(path: Path) -> _Meta | None:
    """Read meta.json; return None if it does not exist. Raises DataError if it is damaged or of an unknown
    format.
    """
    file = path / META
    if not file.exists():
        return None
    unverified = "without this file the folder still opens, unverified"
    try:
        meta = _Meta.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not what hyrt writes"
        raise DataError(f"{file}: damaged ({reason}); {unverified}") from error
    if meta.format != FORMAT:
        raise DataError(
            f"{file}: format {meta.format} is unknown (known: {FORMAT}): a newer hyrt may have written it: "
            "update hyrt"
        )
    if meta.crc32_chunk_bytes != CHUNK_BYTES:
        raise DataError(f"{file}: damaged (crc32_chunk_bytes {meta.crc32_chunk_bytes}); {unverified}")
    return meta


def write_folder(data: Dataset, path: Path) -> None:
    """Write a checked dataset into an empty folder, features block by block, not atomically."""
    entries = {key: write_npy(path / f"{key}.npy", array) for key, array in data.arrays.items()}
    for suffix, table in feature_tables(data).items():
        arrays = dict(table.arrays) if suffix else {}
        if table.rows is not None:
            rows, key = QuantizedRowWriter.from_rows(table.rows, table.name), f"features{suffix}"
            entries[key] = write_blocks(path / f"{key}.npy", rows.dtype, table.rows.shape[1:], rows.blocks)
            arrays |= rows.scales
        for name, array in arrays.items():
            entries[f"{name}{suffix}"] = write_npy(path / f"{name}{suffix}.npy", array)
    symmetric = data.symmetric
    if symmetric is None:
        with Workers(available_cores(), "symmetry") as workers, use_workers(workers):
            symmetric = Topology(data.arrays["indptr"], data.arrays["indices"]).is_symmetric
    meta = _Meta(format=FORMAT, crc32_chunk_bytes=CHUNK_BYTES, symmetric=symmetric, keys=entries)
    (path / META).write_text(meta.model_dump_json(indent=1) + "\n", encoding="utf-8")
