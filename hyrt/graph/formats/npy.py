"""Strict reading and writing of memory-mapped `.npy` files, with a record of dtype, shape and checksums.

A damaged or malicious file causes an error, but neither allocates memory nor runs a pickle.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import psutil
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hyrt.errors import DataError, system_error_text
from hyrt.graph.check import iter_row_blocks
from hyrt.runtime.hardware import cgroup_limits

Array = NDArray[Any]

CHUNK_BYTES = 16 << 20
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 4096
_FIXED_HEADER = 128
_DESCR = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>=|]?)([a-zA-Z])(\d*)['"]\s*,""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)\s*,""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([\d\s,]*)\)""")


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Header of a .npy file."""

    dtype: np.dtype[np.generic]
    """Dtype of the elements: little-endian, with a fixed size."""
    shape: tuple[int, ...]
    fortran: bool
    """Whether the array is stored by columns."""
    offset: int
    """Offset of the first element in bytes."""

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], location: str, *, is_text: bool = False) -> NpyHeader:
    """Read the header of a `.npy` stream, which is then at the first element.

    If `is_text`, the array must have strings of fixed length instead of numbers. Raises DataError for other
    data, such as objects, records or big-endian numbers.
    """
    start = file.read(8)
    if len(start) < 8 or start[:6] != _MAGIC:
        raise DataError(f"{location} is not .npy data, so it is damaged or truncated: copy or write it again")
    version = start[6]
    if version not in (1, 2, 3):
        raise DataError(
            f"{location} has the unknown .npy format {version} (known: 1, 2 and 3): write it again with "
            "numpy.save"
        )
    field = 2 if version == 1 else 4
    length = int.from_bytes(file.read(field), "little")
    if length > _MAX_HEADER:
        raise DataError(
            f"{location}: the .npy header claims {length:,} bytes, so the data is damaged: copy or write it "
            "again"
        )
    text = file.read(length)
    if len(text) != length:
        raise DataError(f"{location} ends inside its .npy header, so it is truncated: copy or write it again")
    header = text.decode("latin-1")
    descr, order, shape = _DESCR.search(header), _ORDER.search(header), _SHAPE.search(header)
    if not (descr and order and shape):
        raise DataError(
            f"{location}: the .npy header ({header.strip()[:80]!r}) is damaged or describes records: store "
            "plain numbers"
        )
    byte_order, kind, size = descr.groups()
    if kind == "O":
        raise DataError(
            f"{location} has Python objects, but hyrt never reads pickled data: store plain numbers"
        )
    if is_text and (kind != "U" or byte_order == ">" or not size):
        raise DataError(
            f"{location} has dtype {byte_order}{kind}{size}, expected strings: store names as "
            "numpy.array(['paper'])"
        )
    if not is_text and (byte_order == ">" or kind not in "biuf" or not size):
        instead = "array.astype('float32')"
        if kind in "US":
            # Strings are usually class names.
            instead = "numpy.unique(array, return_inverse=True)[1], which gives equal strings the same number"
        raise DataError(
            f"{location}: dtype {byte_order}{kind}{size} is not a little-endian number or bool: convert it, "
            f"for example with {instead}"
        )
    try:
        dtype = np.dtype(f"{kind}{size}")
        lengths = tuple(int(n) for n in shape.group(1).split(",") if n.strip())
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{location}: the .npy header ({header.strip()[:80]!r}) is damaged: copy or write it again"
        ) from error
    if any(n >= 2**62 for n in lengths):
        raise DataError(
            f"{location}: shape {lengths} in the .npy header is impossible, so the data is damaged: copy or "
            "write it again"
        )
    return NpyHeader(dtype, lengths, order.group(1) == "True", 8 + field + length)


def header_bytes(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """Return the header of a row-major array, padded to 128 bytes so that the shape can be changed later."""
    descr = dtype.str if dtype.itemsize == 1 else dtype.newbyteorder("<").str
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = text.ljust(_FIXED_HEADER - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode("latin-1")


class NpyWriter:
    """Writer of a `.npy` file that grows by rows. Closing it updates the number of rows in the header."""

    def __init__(self, path: Path, dtype: np.dtype[np.generic], row_shape: tuple[int, ...] = ()) -> None:
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self.num_rows = 0
        self.checksums: list[int] = []
        self._pending = 0
        self._crc = 0
        self._file = path.open("wb")
        self._file.write(header_bytes(self.dtype, (0, *row_shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_rows, *self.row_shape)

    def append(self, rows: Array) -> None:
        """Write rows [n, *row_shape], converted to the dtype of the file."""
        for start in range(0, len(rows), step := rows_per_chunk(self.row_shape, self.dtype)):
            block = np.ascontiguousarray(rows[start : start + step], dtype=self.dtype)
            data = block.reshape(-1).view(np.uint8).data
            self._file.write(data)
            self._checksum(data)
            self.num_rows += len(block)

    def _checksum(self, data: memoryview) -> None:
        while data:
            part = data[: CHUNK_BYTES - self._pending]
            self._crc = zlib.crc32(part, self._crc)
            self._pending += len(part)
            data = data[len(part) :]
            if self._pending == CHUNK_BYTES:
                self.checksums.append(self._crc)
                self._pending, self._crc = 0, 0

    def close(self) -> None:
        if self._file.closed:
            return
        if self._pending:
            self.checksums.append(self._crc)
        self._file.seek(0)
        self._file.write(header_bytes(self.dtype, self.shape))
        self._file.close()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rows_per_chunk(row_shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    """Return the number of rows in a chunk of about `CHUNK_BYTES`, which is at least one."""
    return max(1, CHUNK_BYTES // max(1, math.prod(row_shape) * dtype.itemsize))


_MAP_NORESERVE = (
    0x4000 if hasattr(mmap, "MAP_POPULATE") else 0
)  # Value on Linux; a constant of the mmap module since Python 3.13.

# For smaller files, large pages have no benefit.
_LARGE_BYTES = 32 << 20
_PARTS_OF_MEMORY = 8


class NpyChecksums(BaseModel):
    """Record of the dtype, shape and checksums of a `.npy` file."""

    model_config = ConfigDict(frozen=True)

    dtype: str
    shape: tuple[int, ...]
    crc32: list[int]
    """CRC-32 of each chunk of `CHUNK_BYTES` bytes."""

    @classmethod
    def from_writer(cls, writer: NpyWriter) -> NpyChecksums:
        """Return the record of a closed file."""
        return cls(dtype=writer.dtype.name, shape=writer.shape, crc32=writer.checksums)

    def check_header(self, header: NpyHeader, location: str, record_file: str, hint: str = "") -> None:
        """Raise DataError if the dtype or shape of a file differs from the record. The other arguments are
        for the message.
        """
        if self.dtype != header.dtype.name or self.shape != header.shape:
            raise DataError(
                f"{location}: {header.dtype.name} of shape {list(header.shape)} differs from {record_file}, "
                f"which has {self.dtype} of shape {list(self.shape)}, so the folder was changed after it "
                f"was written{hint}: write the folder again"
            )

    def verify(self, array: Array, location: str, record_file: str, hint: str = "") -> None:
        """Compare a whole file with the checksums; raise DataError with the rows of the first chunk that
        differs.
        """
        data = array.reshape(-1).view(np.uint8)
        if len(self.crc32) != -(-len(data) // CHUNK_BYTES):
            raise DataError(
                f"{location}: {record_file} has {len(self.crc32)} checksums for {len(data):,} bytes, so "
                f"{record_file} is damaged: write the folder again"
            )
        for i, expected in enumerate(self.crc32):
            start = i * CHUNK_BYTES
            chunk = data[start : start + CHUNK_BYTES]
            if zlib.crc32(chunk.data) != expected:
                row_bytes = len(data) // len(array)
                first, last = start // row_bytes, (start + len(chunk) - 1) // row_bytes
                raise DataError(
                    f"{location}: {'positions' if array.ndim == 1 else 'rows'} {first:,} to {last:,} differ "
                    f"from what was written, so they are damaged, or were changed afterwards{hint}: write "
                    "the folder again"
                )


def write_npy(file: Path, array: Array) -> NpyChecksums:
    row_shape = array.shape[1:]
    return write_blocks(
        file, array.dtype, row_shape, iter_row_blocks(array, rows_per_chunk(row_shape, array.dtype))
    )


def write_blocks(
    file: Path, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], blocks: Iterator[Array]
) -> NpyChecksums:
    """Write consecutive blocks of rows [n, *row_shape] to a file."""
    with NpyWriter(file, dtype, row_shape) as writer:
        for block in blocks:
            writer.append(block)
    evict_from_page_cache(file)
    return NpyChecksums.from_writer(writer)


def evict_from_page_cache(file: Path) -> None:
    """Evict a large file from the page cache after writing, so that the next mapping gets large pages.

    Data written in pieces is cached in small pages, which are never merged.
    """
    num_bytes = file.stat().st_size
    if num_bytes < _LARGE_BYTES or not _may_stay(num_bytes) or not hasattr(os, "posix_fadvise"):
        return
    with file.open("rb") as stream:
        # Only clean pages can be evicted.
        os.fdatasync(stream.fileno())
        with suppress(OSError):  # Some file systems do not support this.
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def map_npy(file: Path) -> Array:
    """Map a `.npy` file as a private, writable view. Raises DataError if it is damaged or unreadable."""
    return map_with_header(file, str(file))[0]


def map_with_header(file: Path, location: str, *, is_text: bool = False) -> tuple[Array, NpyHeader]:
    """Map a `.npy` file like `map_npy`; for `is_text`, see `read_header`."""
    try:
        with file.open("rb") as stream:
            header = read_header(stream, location, is_text=is_text)
            data_bytes = file.stat().st_size - header.offset
            if data_bytes != header.data_bytes:
                raise DataError(
                    f"{location}: {header.dtype.name} of shape {list(header.shape)} needs "
                    f"{header.data_bytes:,} bytes, but the file has {data_bytes:,}, so it is damaged or "
                    "truncated: copy or write it again"
                )
            if header.fortran and len(header.shape) > 1 and min(header.shape) > 1:
                raise DataError(
                    f"{location} is stored in column-major order: make it row-major with "
                    "numpy.ascontiguousarray"
                )
            if data_bytes == 0:
                return np.empty(header.shape, header.dtype), header
            # A private mapping is writable, as compiled kernels and torch require, but never changes the
            # file. Since no swap space is reserved, it may be larger than memory.
            mapping = mmap.mmap(
                stream.fileno(),
                0,
                flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
            _prefer_large_pages(mapping)
    except FileNotFoundError as error:
        raise DataError(f"{location} is missing: copy or write the whole folder again") from error
    except OSError as error:
        raise DataError(f"{location} cannot be read: {system_error_text(error)}") from error
    if header.offset % header.dtype.alignment:
        raise DataError(f"{location} is not aligned: write it again with numpy.save")
    values = np.frombuffer(mapping, header.dtype, offset=header.offset)
    return values.reshape(header.shape), header


def _prefer_large_pages(mapping: mmap.mmap) -> None:
    """Request 2 MiB pages for a mapped file, which reduces TLB misses when rows are gathered.

    Nothing is requested if the file may not stay in memory: each access would load a whole page again.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and _may_stay(len(mapping)):
        with suppress(OSError):  # The kernel does not support large pages.
            mapping.madvise(advice)


def _may_stay(num_bytes: int) -> bool:
    """Return whether a file of this size fits well into the memory that is available to this process."""
    limit = cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))["memory_bytes"]
    total = psutil.virtual_memory().total
    return num_bytes * _PARTS_OF_MEMORY <= (total if limit is None else min(total, limit))


def read_npy_shape(file: Path) -> tuple[int, ...] | None:
    """Return the shape of the array in a `.npy` file; None if its header is unreadable."""
    try:
        with file.open("rb") as stream:
            return read_header(stream, str(file)).shape
    except (OSError, DataError):
        return None
