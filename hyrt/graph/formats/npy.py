"""Strict reading and writing of .npy files: a damaged or hostile file raises an error instead of allocating
memory or running a pickle.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

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
    """Element type, little-endian and of fixed size."""
    shape: tuple[int, ...]
    """Lengths of the dimensions."""
    fortran: bool
    """Whether the array is stored by columns instead of rows."""
    offset: int
    """Number of bytes before the first element."""

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], where: str, *, texts: bool = False) -> NpyHeader:
    """Read the header of a .npy stream and leave the stream at the first element.

    Parameters
    ----------
    file
        The stream.
    where
        Name of the stream, for messages.
    texts
        Expect strings of a fixed length instead of numbers.

    Raises
    ------
    DataError
        If the stream is not .npy data, or has objects, records, big-endian numbers, or strings instead of
        numbers (or vice versa).
    """
    start = file.read(8)
    if len(start) < 8 or start[:6] != _MAGIC:
        raise DataError(f"{where}: not .npy data: it is damaged or truncated, copy or write it again")
    version = start[6]
    if version not in (1, 2, 3):
        raise DataError(
            f"{where}: unknown .npy format {version} (known: 1, 2 and 3): write it again with numpy.save"
        )
    field = 2 if version == 1 else 4
    length = int.from_bytes(file.read(field), "little")
    if length > _MAX_HEADER:
        raise DataError(
            f"{where}: the .npy header claims {length:,} bytes: the data is damaged, copy or write it again"
        )
    text = file.read(length)
    if len(text) != length:
        raise DataError(f"{where} ends inside its .npy header: it is truncated, copy or write it again")
    header = text.decode("latin-1")
    descr, order, shape = _DESCR.search(header), _ORDER.search(header), _SHAPE.search(header)
    if not (descr and order and shape):
        raise DataError(
            f"{where}: the .npy header is damaged or describes records: {header.strip()[:80]!r}: store plain "
            "numbers"
        )
    byte_order, kind, size = descr.groups()
    if kind == "O":
        raise DataError(f"{where} has Python objects; hyrt never reads pickled data. Store plain numbers")
    if texts and (kind != "U" or byte_order == ">" or not size):
        raise DataError(
            f"{where}: dtype {byte_order}{kind}{size}, expected names: store them as numpy.array(['paper'])"
        )
    if not texts and (byte_order == ">" or kind not in "biuf" or not size):
        instead = "array.astype('float32')"
        if kind in "US":
            # Class names, for example.
            instead = "numpy.unique(array, return_inverse=True)[1], which numbers equal texts alike"
        raise DataError(
            f"{where}: dtype {byte_order}{kind}{size} is not a little-endian number or bool: convert it, "
            f"such as with {instead}"
        )
    try:
        dtype = np.dtype(f"{kind}{size}")
        lengths = tuple(int(n) for n in shape.group(1).split(",") if n.strip())
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: the .npy header is damaged: {header.strip()[:80]!r}: copy or write it again"
        ) from error
    if any(n >= 2**62 for n in lengths):
        raise DataError(
            f"{where}: shape {lengths} in the .npy header is impossible: the data is damaged, copy or "
            "write it again"
        )
    return NpyHeader(dtype, lengths, order.group(1) == "True", 8 + field + length)


def header_bytes(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """Return the header of a row-major array, padded to 128 bytes so that the shape can be updated later."""
    descr = dtype.str if dtype.itemsize == 1 else dtype.newbyteorder("<").str
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = text.ljust(_FIXED_HEADER - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode("latin-1")


class NpyWriter:
    """New .npy file that grows by rows. The number of rows is written into the header on closing."""

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
        """Write rows [n, *row_shape], converted to the file's dtype."""
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
    """Return the number of rows in a chunk of about `CHUNK_BYTES`, at least one."""
    return max(1, CHUNK_BYTES // max(1, math.prod(row_shape) * dtype.itemsize))
