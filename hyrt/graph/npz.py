"""One .npz file as a dataset: read strictly, written so that equal graphs give equal bytes."""

from __future__ import annotations

import contextlib
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import reject, row_blocks
from hyrt.graph.npy import NpyHeader, header_bytes, read_header, rows_per_chunk
from hyrt.graph.schema import Dataset, FeatureRows, check_header, wanted_keys

Array = NDArray[np.generic]

# Deflate cannot expand by more: a larger claim is a lie, found before memory is taken for it.
_MAX_EXPANSION = 1032
_READ_BYTES = 8 << 20
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
    ValueError,
)


@contextlib.contextmanager
def _damage_named(where: str) -> Iterator[None]:
    """Turn what zipfile raises on damaged archives into one error."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{where}: cannot be read ({error.strerror or error})") from error
    except _DAMAGE as error:
        raise DataError(f"{where}: is damaged or cut short ({error or type(error).__name__})") from error


def read_npz(path: Path, source: str) -> Dataset:
    """Read a dataset from one .npz file; dense features stay in the file until they are asked for.

    Parameters
    ----------
    path
        The file.
    source
        Its name for messages.

    Raises
    ------
    DataError
        If the file is not a .npz, is damaged, holds pickles, or lacks a key.

    """
    with _damage_named(source), zipfile.ZipFile(path) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key in members:
                raise DataError(f"{source}: key '{key}' is there twice: it is damaged")
            members[key] = info
        arrays: dict[str, Array] = {}
        rows = None
        for key in wanted_keys(source, members):
            if key == "features":
                rows = _feature_rows(path, members[key], source)
            else:
                arrays[key] = _read_array(archive, path, members[key], source, key)
    return Dataset(source, arrays, rows)


def _open_member(
    archive: zipfile.ZipFile, path: Path, info: zipfile.ZipInfo, source: str, key: str
) -> tuple[BinaryIO, NpyHeader]:
    """Start reading one array; sizes in archive, header and file are reconciled first."""
    where = f"{source}: key '{key}'"
    if (
        info.compress_size > path.stat().st_size
        or info.file_size > _MAX_EXPANSION * info.compress_size + 1024
    ):
        raise DataError(
            f"{where}: claims {info.file_size:,} bytes, more than the file can hold: it is damaged"
        )
    file = archive.open(info)
    header = read_header(file, where)  # type: ignore[arg-type]
    if header.offset + header.data_bytes != info.file_size:
        raise DataError(
            f"{where}: {header.dtype.name} of shape {list(header.shape)} needs {header.data_bytes:,} bytes, "
            f"the file holds {info.file_size - header.offset:,}"
        )
    check_header(source, key, header.dtype, header.shape)
    return file, header  # type: ignore[return-value]


def _fill(file: BinaryIO, target: memoryview, where: str) -> None:
    done = 0
    while done < len(target):
        count = file.readinto(target[done : done + _READ_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise DataError(f"{where}: ends early, at byte {done:,} of {len(target):,}")
        done += count


def _finish(file: BinaryIO, where: str) -> None:
    # The checksum is compared when the end is read.
    if file.read(1):
        raise DataError(f"{where}: has bytes after its end: it is damaged")


def _read_array(archive: zipfile.ZipFile, path: Path, info: zipfile.ZipInfo, source: str, key: str) -> Array:
    where = f"{source}: key '{key}'"
    with _damage_named(where):
        file, header = _open_member(archive, path, info, source, key)
        with file:
            values = _allocate(header.shape[::-1] if header.fortran else header.shape, header.dtype, where)
            _fill(file, memoryview(values.reshape(-1).view(np.uint8)), where)
            _finish(file, where)
    return np.ascontiguousarray(values.T) if header.fortran else values


def _allocate(shape: tuple[int, ...], dtype: np.dtype[np.generic], where: str) -> Array:
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise DataError(
            f"{where}: does not fit in memory; convert it to a folder, which is memory-mapped: hyrt data convert"
        ) from error


def _feature_rows(path: Path, info: zipfile.ZipInfo, source: str) -> FeatureRows:
    where = f"{source}: key 'features'"
    with _damage_named(where), zipfile.ZipFile(path) as archive:
        file, header = _open_member(archive, path, info, source, "features")
        file.close()

    def whole() -> Array:
        with _damage_named(where), zipfile.ZipFile(path) as archive:
            return _read_array(archive, path, info, source, "features")

    def blocks() -> Iterator[Array]:
        with _damage_named(where), zipfile.ZipFile(path) as archive:
            file, header = _open_member(archive, path, info, source, "features")
            with file:
                step = rows_per_chunk(header.shape[1:], header.dtype)
                for start in range(0, header.shape[0], step):
                    block = np.empty((min(step, header.shape[0] - start), header.shape[1]), header.dtype)
                    _fill(file, memoryview(block.reshape(-1).view(np.uint8)), where)
                    yield block
                _finish(file, where)

    shape = (header.shape[0], header.shape[1])
    if header.fortran:
        # Column-major data cannot be read by rows; it is read whole each time.
        return FeatureRows(shape, header.dtype, lambda: row_blocks(whole()), whole)
    return FeatureRows(shape, header.dtype, blocks, whole)


def write_npz(data: Dataset, path: Path) -> None:
    """Write a dataset as one compressed .npz, features block by block.

    Parameters
    ----------
    data
        A checked dataset.
    path
        The new file; the caller makes it appear atomically.

    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for key, array in data.arrays.items():
            _write_member(
                archive, key, array.dtype, array.shape, row_blocks(array, rows_per_chunk((), array.dtype))
            )
        if data.rows is not None:
            _write_member(archive, "features", data.rows.dtype, data.rows.shape, data.rows.blocks())


def _write_member(
    archive: zipfile.ZipFile,
    key: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    blocks: Iterator[Array],
) -> None:
    # A fixed date: equal graphs give equal files.
    info = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    written = 0
    with archive.open(info, "w", force_zip64=True) as file:
        file.write(header_bytes(np.dtype(dtype), shape))
        for block in blocks:
            file.write(memoryview(np.ascontiguousarray(block, dtype=dtype).reshape(-1).view(np.uint8)))
            written += len(block)
    if written != shape[0]:
        raise reject(archive.filename or "", key, f"{written:,} rows were produced, {shape[0]:,} announced")
