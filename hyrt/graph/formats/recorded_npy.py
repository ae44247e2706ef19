"""Memory-mapped .npy files, and records of their dtype, shape and checksums."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hyrt.errors import DataError, told_of_system
from hyrt.graph.check import row_blocks
from hyrt.graph.formats.npy import CHUNK_BYTES, NpyHeader, NpyWriter, read_header, rows_per_chunk
from hyrt.machine.cores import cgroup_limits

Array = NDArray[Any]

_MAP_NORESERVE = (
    0x4000 if hasattr(mmap, "MAP_POPULATE") else 0
)  # Linux; the mmap module names it from 3.13 on

# Large pages do not pay off for smaller files.
_LARGE_BYTES = 32 << 20
_PARTS_OF_MEMORY = 8


class NpyRecord(BaseModel):
    """Record of a .npy file's dtype, shape and checksums, taken when it was written."""

    model_config = ConfigDict(frozen=True)

    dtype: str
    shape: tuple[int, ...]
    crc32: list[int]
    """Checksum of each chunk of `CHUNK_BYTES` bytes."""

    @classmethod
    def of(cls, writer: NpyWriter) -> NpyRecord:
        """Return the record of a file that was written and closed."""
        return cls(dtype=writer.dtype.name, shape=writer.shape, crc32=writer.checksums)

    def compare(self, header: NpyHeader, where: str, kept_in: str, otherwise: str = "") -> None:
        """Check that a file has the dtype and the shape of the record.

        Parameters
        ----------
        header
            Header of the file.
        where
            Name of the file, for the message.
        kept_in
            Name of the file that contains this record, for the message.
        otherwise
            Another possible cause or remedy, appended to the message.

        Raises
        ------
        DataError
            If dtype or shape differ.
        """
        if self.dtype != header.dtype.name or self.shape != header.shape:
            raise DataError(
                f"{where}: {header.dtype.name} of shape {list(header.shape)} differs from {kept_in}, which "
                f"has {self.dtype} of shape {list(self.shape)}: the folder was changed after it was written"
                f"{otherwise}"
            )

    def verify(self, array: Array, where: str, kept_in: str, otherwise: str = "") -> None:
        """Compare the content of a file with the checksums, which reads the whole file.

        Parameters
        ----------
        array
            Content of the file, with the record's dtype and shape.
        where, kept_in, otherwise
            As in `compare`.

        Raises
        ------
        DataError
            If the content differs. The message names the rows of the first chunk that differs.
        """
        data = array.reshape(-1).view(np.uint8)
        if len(self.crc32) != -(-len(data) // CHUNK_BYTES):
            raise DataError(
                f"{where}: {kept_in} has {len(self.crc32)} checksums for {len(data):,} bytes: {kept_in} is "
                "damaged"
            )
        for i, expected in enumerate(self.crc32):
            start = i * CHUNK_BYTES
            chunk = data[start : start + CHUNK_BYTES]
            if zlib.crc32(chunk.data) != expected:
                row_bytes = len(data) // len(array)
                first, last = start // row_bytes, (start + len(chunk) - 1) // row_bytes
                raise DataError(
                    f"{where}: {'positions' if array.ndim == 1 else 'rows'} {first:,} to {last:,} differ "
                    f"from what was written: they are damaged, or were changed afterwards{otherwise}"
                )


def write_npy(file: Path, array: Array) -> NpyRecord:
    """Write an array to a file in pieces."""
    row_shape = array.shape[1:]
    return write_blocks(
        file, array.dtype, row_shape, row_blocks(array, rows_per_chunk(row_shape, array.dtype))
    )


def write_blocks(
    file: Path, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], blocks: Iterator[Array]
) -> NpyRecord:
    """Write consecutive blocks of rows [n, *row_shape] to a file."""
    with NpyWriter(file, dtype, row_shape) as writer:
        for block in blocks:
            writer.append(block)
    let_go(file)
    return NpyRecord.of(writer)


def let_go(file: Path) -> None:
    """Evict a large file from the page cache after writing, so that the next mapping gets large pages.

    Data that is written in pieces is cached in small pages, which are not merged later.
    """
    num_bytes = file.stat().st_size
    if num_bytes < _LARGE_BYTES or not _may_stay(num_bytes) or not hasattr(os, "posix_fadvise"):
        return
    with file.open("rb") as stream:
        # Only clean pages can be evicted.
        os.fdatasync(stream.fileno())
        with suppress(OSError):  # Not supported by every file system.
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def map_npy(file: Path) -> Array:
    """Map one .npy file [n, ...] as a private, writable view.

    Raises
    ------
    DataError
        If the file is damaged or cannot be read.
    """
    return map_with_header(file, str(file))[0]


def map_with_header(file: Path, where: str, *, texts: bool = False) -> tuple[Array, NpyHeader]:
    """Map one .npy file like `map_npy`; `where` is its name for messages, `texts` as in `read_header`."""
    try:
        with file.open("rb") as stream:
            header = read_header(stream, where, texts=texts)
            data_bytes = file.stat().st_size - header.offset
            if data_bytes != header.data_bytes:
                raise DataError(
                    f"{where}: {header.dtype.name} of shape {list(header.shape)} needs "
                    f"{header.data_bytes:,} bytes, but the file has {data_bytes:,}: it is damaged or "
                    "truncated, copy or write it again"
                )
            if header.fortran and len(header.shape) > 1 and min(header.shape) > 1:
                raise DataError(
                    f"{where}: stored by columns; make it contiguous by rows with numpy.ascontiguousarray"
                )
            if data_bytes == 0:
                return np.empty(header.shape, header.dtype), header
            # A private mapping is writable, which compiled kernels and torch require, but never changes the
            # file. Without swap reservation it may be larger than memory.
            mapping = mmap.mmap(
                stream.fileno(),
                0,
                flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
            _prefer_large_pages(mapping)
    except FileNotFoundError as error:
        raise DataError(f"{where} is missing: copy the whole folder again, or make it again") from error
    except OSError as error:
        raise DataError(f"{where} cannot be read: {told_of_system(error)}") from error
    if header.offset % header.dtype.alignment:
        raise DataError(f"{where}: the data is not aligned; write it again with numpy.save")
    values = np.frombuffer(mapping, header.dtype, offset=header.offset)
    return values.reshape(header.shape), header


def _prefer_large_pages(mapping: mmap.mmap) -> None:
    """Request 2 MiB pages for a mapped file, for fewer TLB misses when rows are gathered.

    Skipped if the file may not stay in memory, because then each access would load a whole large page again.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and _may_stay(len(mapping)):
        with suppress(OSError):  # The kernel does not support large pages.
            mapping.madvise(advice)


def _may_stay(num_bytes: int) -> bool:
    """Return whether a file of this size fits into the memory available to this process, next to everything
    else.
    """
    limit = cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))["memory_bytes"]
    total = psutil.virtual_memory().total
    return num_bytes * _PARTS_OF_MEMORY <= (total if limit is None else min(total, limit))


def npy_shape(file: Path) -> tuple[int, ...] | None:
    """Return the shape of the array in a .npy file; None if its header cannot be read."""
    try:
        with file.open("rb") as stream:
            return read_header(stream, str(file)).shape
    except (OSError, DataError):
        return None
