"""A text file as blocks of whole records, each with the number of its first line."""

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
"""A longer record is taken for a quote that is not closed."""
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_UTF8_BOM = b"\xef\xbb\xbf"
_COMMENTS = (b"#", b"%")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some whole records."""

    raw: bytes
    """As it stands in the file, but in UTF-8 whatever the file's encoding is."""
    first_line: int
    """The number of the line that it begins with, from 1."""
    form: TextForm = field(repr=False)

    def stripped(self) -> tuple[bytes, int]:
        """The block without the spaces and tabs around values, and around how many values there were some."""
        return _stripped(self.raw, self.form)

    @property
    def lines(self) -> NDArray[np.int64]:
        """The number of the line in which each record begins; a line without letters is no record."""
        return _records(self.stripped()[0], self.form, self.first_line)[0]


def _stripped(data: bytes, form: TextForm) -> tuple[bytes, int]:
    if not any(letter in data for letter in (b" ", b"\t") if letter != form.delimiter.encode()):
        return data, 0
    out = np.empty(len(data), np.uint8)
    quote = ord(form.quote) if form.quote else -1
    size, padded = strip_padding(np.frombuffer(data, np.uint8), ord(form.delimiter), quote, out)
    return (out[:size].tobytes(), int(padded)) if padded else (data, 0)


def _records(data: bytes, form: TextForm, line: int) -> tuple[NDArray[np.int64], int]:
    """The line of each record, and where the last whole one ends."""
    lines = np.empty(data.count(b"\n") + data.count(b"\r") + 1, np.int64)
    quote = ord(form.quote) if form.quote else -1
    num, end = find_records(np.frombuffer(data, np.uint8), ord(form.delimiter), quote, line, lines)
    return lines[:num], int(end)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of text with a table."""

    path: Path
    name: str
    """Its name for messages."""
    form: TextForm

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """The file, unpacked."""
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
        """Its first bytes, unpacked."""
        with self._opened() as stream:
            return stream.read(num_bytes)

    def columns(self) -> list[str]:
        """The names of the columns, in order.

        Raises
        ------
        DataError
            If the file is empty, is no text, or cannot be read.
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
        """Return the line of the names of the columns in UTF-8, without its end; None if there is none."""
        if not self.form.header:
            return None
        with self._opened() as stream:
            return self._as_utf8(_Head(self, stream).line).rstrip(b"\r")

    @property
    def _dialect(self) -> dict[str, Any]:
        """What the csv module calls it."""
        quote = self.form.quote
        quoting = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
        return {"delimiter": self.form.delimiter, "quotechar": quote or None, "quoting": quoting}

    def blocks(self, block_bytes: int | None = None) -> Iterator[TextBlock]:
        """All records, in blocks of about so many bytes; None for `BLOCK_BYTES`.

        Raises
        ------
        DataError
            If the file cannot be read, or has a record that does not end.
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
        """See that the last record, at whose end the file may end without a new line, has no open quote."""
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
    """What comes before the records of a file: a mark, comments, and the line of names."""

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
    """Where the last record ends that ends in these bytes, which begin with a record; 0 where none does."""
    if not form.quote or form.quote.encode() not in data:
        return data.rfind(b"\n") + 1
    return _records(data, form, 0)[1]
