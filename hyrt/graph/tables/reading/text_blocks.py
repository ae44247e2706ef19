"""Text file as blocks of complete records, each with its first line number."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, told_of_system
from hyrt.graph.tables.reading.record_kernels import find_records, strip_padding
from hyrt.graph.tables.reading.text_form import TextForm

BLOCK_BYTES = 8 << 20
MOST_RECORD_BYTES = 32 << 20
"""A longer record means that a quote is not closed."""
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_UTF8_BOM = b"\xef\xbb\xbf"
_COMMENTS = (b"#", b"%")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Block of complete records."""

    raw: bytes
    """Content in the file, converted to UTF-8."""
    first_line: int
    """Line number of the first line, from 1."""
    form: TextForm = field(repr=False)

    def stripped(self) -> tuple[bytes, int]:
        """Return the block without spaces and tabs around values, and the number of values that had some."""
        return _stripped(self.raw, self.form)

    @property
    def lines(self) -> NDArray[np.int64]:
        """Return the line number in which each record begins; blank lines are not records."""
        return _records(self.stripped()[0], self.form, self.first_line)[0]


def _stripped(data: bytes, form: TextForm) -> tuple[bytes, int]:
    if not any(letter in data for letter in (b" ", b"\t") if letter != form.delimiter.encode()):
        return data, 0
    out = np.empty(len(data), np.uint8)
    quote = ord(form.quote) if form.quote else -1
    size, padded = strip_padding(np.frombuffer(data, np.uint8), ord(form.delimiter), quote, out)
    return (out[:size].tobytes(), int(padded)) if padded else (data, 0)


def _records(data: bytes, form: TextForm, line: int) -> tuple[NDArray[np.int64], int]:
    """Return the line number of each record, and the end of the last complete record."""
    lines = np.empty(data.count(b"\n") + data.count(b"\r") + 1, np.int64)
    quote = ord(form.quote) if form.quote else -1
    num, end = find_records(np.frombuffer(data, np.uint8), ord(form.delimiter), quote, line, lines)
    return lines[:num], int(end)


@dataclass(frozen=True, slots=True)
class TextFile:
    """Text file with a table."""

    path: Path
    name: str
    """Name of the file, for messages."""
    form: TextForm

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """Open the file, decompressed."""
        try:
            with _OPENERS.get(self.path.suffix.lower(), open)(self.path, "rb") as stream:
                yield stream
        except _DAMAGE as error:
            raise DataError(
                f"{self.name}: damaged or truncated ({error}): copy or download it again"
            ) from error
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {told_of_system(error)}") from error

    def start(self, num_bytes: int) -> bytes:
        """Return the first bytes, decompressed."""
        with self._opened() as stream:
            return stream.read(num_bytes)

    def columns(self) -> list[str]:
        """Return the column names in order.

        Raises
        ------
        DataError
            If the file is empty, is not text, or cannot be read.
        """
        with self._opened() as stream:
            head = _Head(self, stream)
            line = head.line if self.form.header else head.first_record()
        try:
            line = _stripped(line, self.form)[0]
            values = next(csv.reader([_decoded(self, line)], **self._dialect), [])
        except csv.Error as error:
            raise DataError(
                f"{self.name}, line {head.next_line - self.form.header}: its values cannot be told apart "
                f"({error}): end lines by \\n, not by \\r alone, and close every quote"
            ) from None
        if not self.form.header:
            return [str(number) for number in range(1, len(values) + 1)]
        return values

    def header_line(self) -> bytes | None:
        """Return the header line in UTF-8, without its line end; None if there is no header."""
        if not self.form.header:
            return None
        with self._opened() as stream:
            return self._as_utf8(_Head(self, stream).line).rstrip(b"\r")

    @property
    def _dialect(self) -> dict[str, Any]:
        """Return the arguments for the csv module."""
        quote = self.form.quote
        quoting = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
        return {"delimiter": self.form.delimiter, "quotechar": quote or None, "quoting": quoting}

    def blocks(self, block_bytes: int | None = None) -> Iterator[TextBlock]:
        """Yield all records in blocks of about `block_bytes` bytes; None means `BLOCK_BYTES`.

        Raises
        ------
        DataError
            If the file cannot be read, or has a record without an end.
        """
        with self._opened() as stream:
            head = _Head(self, stream)
            line, rest = head.next_line, head.rest
            ended = False
            while not ended:
                data = stream.read(block_bytes or BLOCK_BYTES)
                ended = not data
                data = rest + data
                cut = len(data) if ended else _last_end(data, self.form)
                if not cut and len(data) > MOST_RECORD_BYTES:
                    raise DataError(
                        f"{self.name}, line {line}: a record of more than {MOST_RECORD_BYTES >> 20} MiB "
                        f"begins here: close its quote ({self.form.quote}), or give another letter as quote"
                    )
                if ended:
                    self._check_end(data, line)
                rest = data[cut:]
                if cut:
                    block = data[:cut]
                    yield TextBlock(self._as_utf8(block), line, self.form)
                    line += block.count(b"\n")

    def _check_end(self, data: bytes, line: int) -> None:
        """Refuse an open quote in the last record, which need not end with a newline."""
        if self.form.quote and _last_end(data + b"\n", self.form) <= len(data):
            first = _records(data, self.form, line)[0][-1]
            raise DataError(
                f"{self.name}, line {first}: a quote ({self.form.quote}) in this record is not closed: close "
                "it, or give another letter as text.quote in the schema, '' for none"
            )

    def _as_utf8(self, data: bytes) -> bytes:
        if self.form.encoding == "utf-8":
            return data
        return data.decode(self.form.encoding, errors="replace").encode()


class _Head:
    """Start of a file, before the records: byte order mark, comments, and header line."""

    def __init__(self, file: TextFile, stream: IO[bytes]) -> None:
        data = stream.read(1 << 16)
        for mark, encoding in _BOMS.items():
            if data.startswith(mark):
                raise DataError(f"{file.name}: written in {encoding}: save it as UTF-8")
        if b"\0" in data:
            raise DataError(f"{file.name}: not text: give CSV files, or Parquet files that end in .parquet")
        data = data.removeprefix(_UTF8_BOM)
        self.line, self.next_line = b"", 1
        while True:
            first, newline, rest = data.partition(b"\n")
            if not newline and (more := stream.read(1 << 20)):
                data += more
                continue
            is_skipped = not first.strip() or first.startswith(_COMMENTS)
            if is_skipped and newline:
                data, self.next_line = rest, self.next_line + 1
                continue
            if is_skipped:
                raise DataError(f"{file.name}: has no rows: fill it, or leave it out")
            break
        if file.form.header:
            self.line, data, self.next_line = first, rest, self.next_line + 1
        self.rest = data

    def first_record(self) -> bytes:
        return self.rest.partition(b"\n")[0]


def _decoded(file: TextFile, line: bytes) -> str:
    try:
        return line.decode(file.form.encoding).rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(
            f"{file.name}: the names of the columns are not UTF-8 text: give encoding: cp1252"
        ) from None


def _last_end(data: bytes, form: TextForm) -> int:
    """Return the end of the last complete record in a block that begins with a record; 0 if there is none."""
    if not form.quote or form.quote.encode() not in data:
        return data.rfind(b"\n") + 1
    return _records(data, form, 0)[1]
