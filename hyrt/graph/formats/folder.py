"""A folder with one memory-mapped .npy file per key, and a meta.json with checksums taken when writing."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hyrt.errors import DataError
from hyrt.graph.check import row_blocks
from hyrt.graph.formats.npy import CHUNK_BYTES, NpyHeader, NpyWriter, read_header, rows_per_chunk
from hyrt.graph.formats.schema import (
    LARGE_BYTES,
    Dataset,
    FeatureRows,
    check_header,
    check_unread,
    wanted_keys,
)

Array = NDArray[Any]

META = "meta.json"
FORMAT = 1
_MAP_NORESERVE = (
    0x4000 if hasattr(mmap, "MAP_POPULATE") else 0
)  # Linux; the mmap module names it from 3.13 on


def read_folder(path: Path, source: str, *, check: bool = False) -> Dataset:
    """Map a folder of .npy files, and compare them with the checksums in meta.json when there is one.

    The arrays are private, writable views: writing to one changes this process's copy of the page, never the
    file.

    Parameters
    ----------
    path
        The folder.
    source
        The name of the dataset, for messages.
    check
        Also compare features above `LARGE_BYTES`, which are otherwise left unread.

    Raises
    ------
    DataError
        If a key is missing, a file is damaged, or a file is not what meta.json says: names the key, and the
        rows of the first chunk that differs.
    """
    files = sorted(path.glob("*.npy"))
    if not files:
        hint = " (did you mean one of its .npz files?)" if any(path.glob("*.npz")) else ""
        raise DataError(f"{source} has no .npy files: a dataset folder has one .npy file per key{hint}")
    keys = wanted_keys(source, [file.stem for file in files])
    check_unread(source, {file.stem: _shape(file) for file in files}, keys)
    meta = _read_meta(path)
    for key in meta or ():
        if key not in keys:
            raise DataError(f"{source}: key '{key}' is in {META} but has no file")
    arrays: dict[str, Array] = {}
    rows = None
    for key in keys:
        array, header = _map(path / f"{key}.npy", f"{source}: key '{key}'")
        check_header(source, key, header.dtype, header.shape)
        if meta is not None:
            _compare(meta, source, key, header)
            if check or key != "features" or array.nbytes <= LARGE_BYTES:
                _verify(array, meta[key].crc32, f"{source}: key '{key}'")
        if key == "features":
            rows = FeatureRows.of(array, mapped=True)
        else:
            arrays[key] = array
    return Dataset(source, arrays, rows)


def _map(file: Path, where: str) -> tuple[Array, NpyHeader]:
    try:
        with file.open("rb") as stream:
            header = read_header(stream, where)
            held = file.stat().st_size - header.offset
            if held != header.data_bytes:
                raise DataError(
                    f"{where}: {header.dtype.name} of shape {list(header.shape)} needs "
                    f"{header.data_bytes:,} bytes, but the file has {held:,}: it is damaged or "
                    "truncated"
                )
            if header.fortran and len(header.shape) > 1 and min(header.shape) > 1:
                raise DataError(
                    f"{where}: stored by columns; make it contiguous by rows with numpy.ascontiguousarray"
                )
            if held == 0:
                return np.empty(header.shape, header.dtype), header
            # A private mapping is writable (compiled kernels and torch want that) yet never changes the file;
            # without reservation it may be larger than memory.
            mapping = mmap.mmap(
                stream.fileno(),
                0,
                flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
    except OSError as error:
        raise DataError(f"{where} cannot be read ({error.strerror or error})") from error
    if header.offset % header.dtype.itemsize:
        raise DataError(f"{where}: the data is not aligned; write it again with numpy.save")
    values = np.frombuffer(mapping, header.dtype, offset=header.offset)
    return values.reshape(header.shape), header


def _shape(file: Path) -> tuple[int, ...] | None:
    try:
        with file.open("rb") as stream:
            return read_header(stream, str(file)).shape
    except (OSError, DataError):
        return None  # Not an error of what is not read; what is read is opened again.


def map_npy(file: Path) -> Array:
    """Map one .npy file [n, ...] as a private, writable view.

    Raises
    ------
    DataError
        If it is damaged or cannot be read.
    """
    return _map(file, str(file))[0]


class _Entry(BaseModel):
    """What meta.json says of one key."""

    dtype: str
    shape: tuple[int, ...]
    crc32: list[int]
    """The checksums of its chunks."""


class _Meta(BaseModel):
    format: int
    crc32_chunk_bytes: int | None = None
    keys: dict[str, _Entry]


def _read_meta(path: Path) -> dict[str, _Entry] | None:
    """What meta.json says of each key, or None when there is none.

    Raises
    ------
    DataError
        If it cannot be read or is of a newer format.
    """
    file = path / META
    if not file.exists():
        return None
    unverified = "without this file the folder still opens, unverified"
    try:
        meta = _Meta.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not what hyrt writes"
        raise DataError(f"{file}: damaged ({why}); {unverified}") from error
    if meta.format != FORMAT:
        raise DataError(
            f"{file}: format {meta.format} is unknown (known: {FORMAT}): a newer hyrt may have written it"
        )
    if meta.crc32_chunk_bytes != CHUNK_BYTES:
        raise DataError(f"{file}: damaged (crc32_chunk_bytes {meta.crc32_chunk_bytes}); {unverified}")
    return meta.keys


def _compare(meta: dict[str, _Entry], source: str, key: str, header: NpyHeader) -> None:
    entry = meta.get(key)
    if entry is None:
        raise DataError(
            f"{source}: key '{key}' is not in {META}: the folder was changed after it was written"
        )
    if entry.dtype != header.dtype.name or entry.shape != header.shape:
        raise DataError(
            f"{source}: key '{key}': {header.dtype.name} of shape {list(header.shape)} differs from {META}, "
            f"which has {entry.dtype} of shape {list(entry.shape)}: the folder was changed after it was "
            "written"
        )


def _verify(array: Array, checksums: list[int], where: str) -> None:
    data = array.reshape(-1).view(np.uint8)
    if len(checksums) != -(-len(data) // CHUNK_BYTES):
        raise DataError(
            f"{where}: {META} has {len(checksums)} checksums for {len(data):,} bytes: {META} is damaged"
        )
    for i, expected in enumerate(checksums):
        start = i * CHUNK_BYTES
        chunk = data[start : start + CHUNK_BYTES]
        if zlib.crc32(chunk.data) != expected:
            row_bytes = len(data) // len(array)
            first, last = start // row_bytes, (start + len(chunk) - 1) // row_bytes
            raise DataError(
                f"{where}: {'positions' if array.ndim == 1 else 'rows'} {first:,} to {last:,} differ "
                f"from what was written: they are damaged, or were changed afterwards (without {META}, "
                "the folder opens unverified)"
            )


def write_folder(data: Dataset, path: Path) -> None:
    """Write a checked dataset into an empty folder, features block by block; the caller makes it atomic."""
    entries: dict[str, _Entry] = {}

    def write(
        key: str, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], rows: Iterator[Array]
    ) -> None:
        with NpyWriter(path / f"{key}.npy", dtype, row_shape) as writer:
            for block in rows:
                writer.append(block)
        entries[key] = _Entry(dtype=writer.dtype.name, shape=writer.shape, crc32=writer.checksums)

    for key, array in data.arrays.items():
        row_shape = array.shape[1:]
        write(key, array.dtype, row_shape, row_blocks(array, rows_per_chunk(row_shape, array.dtype)))
    if data.rows is not None:
        write("features", data.rows.dtype, data.rows.shape[1:], data.rows.blocks())
    meta = _Meta(format=FORMAT, crc32_chunk_bytes=CHUNK_BYTES, keys=entries)
    (path / META).write_text(meta.model_dump_json(indent=1) + "\n", encoding="utf-8")
