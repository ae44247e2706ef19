"""A folder with one memory-mapped .npy file per key, and a meta.json with checksums taken when writing."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import row_blocks
from hyrt.graph.formats.npy import CHUNK_BYTES, NpyHeader, NpyWriter, read_header, rows_per_chunk
from hyrt.graph.formats.schema import LARGE_BYTES, Dataset, FeatureRows, check_header, wanted_keys

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
        Its name for messages.
    check
        Also compare features above `LARGE_BYTES`, which are otherwise left unread.

    Raises
    ------
    DataError
        If a key is missing, a file is damaged, or a file is not what meta.json says: names the key, and the
        rows of the first chunk that differs.
    """
    keys = wanted_keys(source, sorted(file.stem for file in path.glob("*.npy")))
    meta = read_meta(path)
    for key in meta or ():
        if key not in keys:
            raise DataError(f"{source}: key '{key}': is in {META} but has no file")
    arrays: dict[str, Array] = {}
    rows = None
    for key in keys:
        array, header = _map(path / f"{key}.npy", f"{source}: key '{key}'")
        check_header(source, key, header.dtype, header.shape)
        if meta is not None:
            _compare(meta, source, key, header)
            if check or key != "features" or array.nbytes <= LARGE_BYTES:
                _verify(array, meta[key]["crc32"], f"{source}: key '{key}'")
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
        raise DataError(f"{where}: cannot be read ({error.strerror or error})") from error
    if header.offset % header.dtype.itemsize:
        raise DataError(f"{where}: the data is not aligned; write it again with numpy.save")
    values = np.frombuffer(mapping, header.dtype, offset=header.offset)
    return values.reshape(header.shape), header


def map_npy(file: Path) -> Array:
    """Map one .npy file [n, ...] as a private, writable view.

    Raises
    ------
    DataError
        If it is damaged or cannot be read.
    """
    return _map(file, str(file))[0]


def read_meta(path: Path) -> dict[str, dict[str, Any]] | None:
    """What meta.json says of each key (`dtype`, `shape`, `crc32` of its chunks), or None when there is none.

    Raises
    ------
    DataError
        If it cannot be read or is of a newer format.
    """
    file = path / META
    if not file.exists():
        return None
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        version, chunk_bytes = meta["format"], meta.get("crc32_chunk_bytes")
        entries = {
            key: {"dtype": entry["dtype"], "shape": list(entry["shape"]), "crc32": list(entry["crc32"])}
            for key, entry in meta["keys"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: damaged ({error}); without this file the folder still opens, unverified"
        ) from error
    if version != FORMAT:
        raise DataError(
            f"{file}: format {version} is unknown (known: {FORMAT}): it may have been written by a newer hyrt"
        )
    if chunk_bytes != CHUNK_BYTES:
        raise DataError(
            f"{file}: damaged (crc32_chunk_bytes {chunk_bytes}); without this file the folder still "
            "opens, unverified"
        )
    return entries


def _compare(meta: dict[str, dict[str, Any]], source: str, key: str, header: NpyHeader) -> None:
    entry = meta.get(key)
    if entry is None:
        raise DataError(
            f"{source}: key '{key}': is not in {META}: the folder was changed after it was written"
        )
    if entry["dtype"] != header.dtype.name or tuple(entry["shape"]) != header.shape:
        raise DataError(
            f"{source}: key '{key}': {header.dtype.name} of shape {list(header.shape)} differs from {META}, "
            "which has "
            f"{entry['dtype']} of shape {entry['shape']}: the folder was changed after it was written"
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


class FolderWriter:
    """Writes a dataset folder key by key; `finish` adds meta.json.

    Parameters
    ----------
    path
        An existing, empty folder; the caller makes it appear atomically.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, dict[str, Any]] = {}

    def open(self, key: str, dtype: np.dtype[np.generic], row_shape: tuple[int, ...] = ()) -> NpyWriter:
        """Start the file of one key; hand it back to `add` when it is complete."""
        return NpyWriter(self.path / f"{key}.npy", dtype, row_shape)

    def add(self, key: str, writer: NpyWriter) -> None:
        """Close a key's file and note its checksums."""
        writer.close()
        self._entries[key] = {
            "dtype": np.dtype(writer.dtype).name,
            "shape": list(writer.shape),
            "crc32": writer.checksums,
        }

    def write(
        self, key: str, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], blocks: Iterator[Array]
    ) -> None:
        """Write one key from consecutive blocks of rows."""
        with self.open(key, dtype, row_shape) as writer:
            for block in blocks:
                writer.append(block)
        self.add(key, writer)

    def finish(self) -> None:
        """Write meta.json. The folder is complete."""
        meta = {"format": FORMAT, "crc32_chunk_bytes": CHUNK_BYTES, "keys": self._entries}
        (self.path / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def write_folder(data: Dataset, path: Path) -> None:
    """Write a dataset as a folder, features block by block.

    Parameters
    ----------
    data
        A checked dataset.
    path
        An existing, empty folder; the caller makes it appear atomically.
    """
    folder = FolderWriter(path)
    for key, array in data.arrays.items():
        blocks = row_blocks(array, rows_per_chunk(array.shape[1:], array.dtype))
        folder.write(key, array.dtype, array.shape[1:], blocks)
    if data.rows is not None:
        folder.write("features", data.rows.dtype, data.rows.shape[1:], data.rows.blocks())
    folder.finish()
