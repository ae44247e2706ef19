"""Batches of CSV rows: blocks of complete records are parsed by several threads."""

from __future__ import annotations

import bz2
import csv
import gzip
import itertools
import lzma
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, system_error_text
from hyrt.graph.csr import map_in_order
from hyrt.graph.tables.kernels import find_records, strip_padding
from hyrt.graph.tables.schema import CsvDialect, find_separator_line
from hyrt.graph.tables.table_batch import TableBatch, UnreadableRow
from hyrt.runtime.hardware import available_cores

BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 32 << 20
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
    """Content of the file, converted to UTF-8."""
    first_line: int
    """Line number of the first line, from 1."""
    dialect: CsvDialect = field(repr=False)

    def stripped(self) -> tuple[bytes, int]:
        """Return the block without spaces and tabs around values, and the number of values that had any."""
        return _stripped(self.raw, self.dialect)

    @property
    def lines(self) -> NDArray[np.int64]:
        """Return the line number where each record begins; blank lines are not records."""
        return _records(self.stripped()[0], self.dialect, self.first_line)[0]


def _stripped(data: bytes, form: CsvDialect) -> tuple[bytes, int]:
    if not any(letter in data for letter in (b" ", b"\t") if letter != form.delimiter.encode()):
        return data, 0
    out = np.empty(len(data), np.uint8)
    quote = ord(form.quote) if form.quote else -1
    size, padded = strip_padding(np.frombuffer(data, np.uint8), ord(form.delimiter), quote, out)
    return (out[:size].tobytes(), int(padded)) if padded else (data, 0)


def _records(data: bytes, form: CsvDialect, line: int) -> tuple[NDArray[np.int64], int]:
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
    dialect: CsvDialect

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """Open the file for reading decompressed bytes."""
        try:
            with _OPENERS.get(self.path.suffix.lower(), open)(self.path, "rb") as stream:
                yield stream
        except _DAMAGE as error:
            raise DataError(
                f"{self.name} is damaged or truncated ({error}): copy or download it again"
            ) from error
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {system_error_text(error)}") from error

    def start(self, num_bytes: int) -> bytes:
        """Return the first `num_bytes` decompressed bytes."""
        with self._opened() as stream:
            return stream.read(num_bytes)

    def columns(self) -> list[str]:
        """Return the column names in order.

        Raises DataError if the file is empty, is not text, or cannot be read.
        """
        with self._opened() as stream:
            head = _Head(self, stream)
            line = head.line if self.dialect.header else head.first_record()
        try:
            line = _stripped(line, self.dialect)[0]
            values = next(csv.reader([_decoded(self, line)], **self.csv_arguments), [])
        except csv.Error as error:
            raise DataError(
                f"{self.name}, line {head.next_line - self.dialect.header}: the values cannot be separated "
                f"({error}): end lines with \\n, not with \\r alone, and close every quote"
            ) from None
        if not self.dialect.header:
            return [str(number) for number in range(1, len(values) + 1)]
        return values

    def count_comments(self) -> int:
        """Return the number of lines above the rows that are skipped as comments."""
        with self._opened() as stream:
            return _Head(self, stream).num_comments

    def header_line(self) -> bytes | None:
        """Return the header line in UTF-8, without its line end; None if there is no header."""
        if not self.dialect.header:
            return None
        with self._opened() as stream:
            return self.as_utf8(_Head(self, stream).line).rstrip(b"\r")

    @property
    def csv_arguments(self) -> dict[str, Any]:
        """Return the arguments for the csv module."""
        quote = self.dialect.quote
        quoting = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
        return {"delimiter": self.dialect.delimiter, "quotechar": quote or None, "quoting": quoting}

    def blocks(self, block_bytes: int | None = None) -> Iterator[TextBlock]:
        """Yield all records in blocks of about `block_bytes` bytes (default: `BLOCK_BYTES`).

        Raises DataError if the file cannot be read, or has a record without an end.
        """
        with self._opened() as stream:
            head = _Head(self, stream)
            line, rest = head.next_line, head.rest
            ended = False
            while not ended:
                data = stream.read(block_bytes or BLOCK_BYTES)
                ended = not data
                # Concatenated files have a byte-order mark before each header.
                data = (rest + data).removeprefix(_UTF8_BOM).replace(b"\n" + _UTF8_BOM, b"\n")
                cut = len(data) if ended else _last_end(data, self.dialect)
                if not cut and len(data) > MAX_RECORD_BYTES:
                    raise DataError(
                        f"{self.name}, line {line}: the record that starts here is longer than "
                        f"{MAX_RECORD_BYTES >> 20} MiB: close its quote ({self.dialect.quote}), or set "
                        "text.quote in the schema to another character"
                    )
                if ended:
                    self._check_end(data, line)
                rest = data[cut:]
                if cut:
                    block = data[:cut]
                    yield TextBlock(self.as_utf8(block), line, self.dialect)
                    line += block.count(b"\n")

    def _check_end(self, data: bytes, line: int) -> None:
        """Raise DataError if the last record, which need not end with a newline, has an open quote."""
        if self.dialect.quote and _last_end(data + b"\n", self.dialect) <= len(data):
            first = _records(data, self.dialect, line)[0][-1]
            raise DataError(
                f"{self.name}, line {first}: a quote ({self.dialect.quote}) in this record is not closed: "
                "close it, or set text.quote in the schema to another character ('' for none)"
            )

    def as_utf8(self, data: bytes) -> bytes:
        """Return text of the file in UTF-8."""
        if self.dialect.encoding == "utf-8":
            return data
        try:
            # Text in another encoding is practically never valid UTF-8, but one of several files may be.
            data.decode()
        except UnicodeDecodeError:
            return data.decode(self.dialect.encoding, errors="replace").encode()
        return data


class _Head:
    """Start of a file, before the records: byte order mark, comments, and header line."""

    def __init__(self, file: TextFile, stream: IO[bytes]) -> None:
        data = stream.read(1 << 16)
        for mark, encoding in _BOMS.items():
            if data.startswith(mark):
                raise DataError(f"{file.name} is encoded in {encoding}: save it as UTF-8")
        if b"\0" in data:
            raise DataError(
                f"{file.name} is not a text file: use CSV files, or Parquet files with names ending in "
                ".parquet"
            )
        data = data.removeprefix(_UTF8_BOM)
        self.line, self.next_line, self.num_comments = b"", 1, 0
        while True:
            first, newline, rest = data.partition(b"\n")
            if not newline and (more := stream.read(1 << 20)):
                data += more
                continue
            is_skipped = not first.strip() or first.startswith(_COMMENTS)
            is_skipped |= self.next_line == 1 and find_separator_line(first) is not None
            self.num_comments += first.startswith(_COMMENTS)
            if is_skipped and newline:
                data, self.next_line = rest, self.next_line + 1
                continue
            if is_skipped:
                raise DataError(f"{file.name} has no rows: add rows, or remove the file")
            break
        if file.dialect.header:
            self.line, data, self.next_line = first, rest, self.next_line + 1
        self.rest = data

    def first_record(self) -> bytes:
        return self.rest.partition(b"\n")[0]


def _decoded(file: TextFile, line: bytes) -> str:
    try:
        return file.as_utf8(line).decode().rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(
            f"{file.name}: the column names are not UTF-8 text: set text.encoding in the schema to cp1252"
        ) from None


def _last_end(data: bytes, form: CsvDialect) -> int:
    """Return the end of the last complete record in a block that begins with a record; 0 if there is none."""
    if not form.quote or form.quote.encode() not in data:
        return data.rfind(b"\n") + 1
    return _records(data, form, 0)[1]


_SHOWN_LETTERS = 60


def read_csv_batches(
    file: TextFile,
    kinds: Mapping[str, str],
    *,
    block_bytes: int | None = None,
    max_blocks: int | None = None,
) -> Iterator[TableBatch]:
    """Yield the rows of a file in batches of about `block_bytes` bytes, at most `max_blocks` batches.

    `kinds` has the expected kind of each requested column: `number`, `text` or `any`. If a batch has other
    values, its column is returned as strings. Integers whose spelling matters, such as ids, are requested as
    `text`. Raises DataError if a column is missing or not unique, or the file cannot be read.
    """
    names = file.columns()
    for name in kinds:
        if names.count(name) > 1:
            raise DataError(
                f"{file.name} has {names.count(name)} columns named {name!r}: give them different names"
            )
    header = file.header_line()
    threads = available_cores()
    with ThreadPoolExecutor(threads) as pool:
        blocks = itertools.islice(file.blocks(block_bytes), max_blocks)
        yield from map_in_order(
            pool, lambda block: _parse(file, block, names, kinds, header), blocks, threads
        )


def _parse(
    file: TextFile, block: TextBlock, names: list[str], kinds: Mapping[str, str], header: bytes | None
) -> TableBatch:
    import pyarrow as pa

    types = {"number": pa.float64(), "text": pa.string()}
    column_types = {name: types.get(kind, pa.string()) for name, kind in kinds.items()}
    lines = lambda: block.lines  # noqa: E731
    data, padded = block.stripped()
    if header and _has_line(block.raw, header):
        return _read_as_text(file, block, names, list(column_types), has_header=True)
    try:
        table = _read(file, data, names, column_types, None)
    except pa.ArrowInvalid:
        return _read_as_text(file, block, names, list(column_types), has_header=False)
    columns, as_written = _without_nulls(table, file.dialect.nulls)
    return TableBatch(file.name, table.num_rows, columns, "line", lines, padded=padded, as_written=as_written)


def _read_as_text(
    file: TextFile, block: TextBlock, names: list[str], selected: list[str], *, has_header: bool
) -> TableBatch:
    """Parse a block into strings, without rows that have a wrong number of values.

    Also drops repetitions of the header line.
    """
    import pyarrow as pa

    line_numbers = block.lines
    invalid: list[Any] = []
    bad: list[UnreadableRow] = []

    def skip(row: Any) -> str:
        invalid.append(row)
        return "skip"

    data, padded = block.stripped()
    try:
        data.decode()
    except UnicodeDecodeError:
        # Report each line, and replace the invalid bytes so that the block can be parsed.
        for number, line in enumerate(data.split(b"\n"), block.first_line):
            try:
                line.decode()
            except UnicodeDecodeError:
                shown = line.decode(errors="replace")[:_SHOWN_LETTERS].rstrip("\r")
                problem = f"{shown!r} is not UTF-8 text: set text.encoding in the schema to cp1252"
                bad.append(UnreadableRow(number, problem))
        data = data.decode(errors="replace").encode()
    read = names if has_header and len(set(names)) == len(names) else selected
    table = _read(file, data, names, dict.fromkeys(read, pa.string()), skip)
    if len(line_numbers) != table.num_rows + len(invalid):
        raise DataError(
            f"{file.name} cannot be split into records from line {block.first_line} on: close every quote, "
            "or set text.quote in the schema to another character"
        )
    is_valid = np.ones(len(line_numbers), np.bool_)
    for row in invalid:
        is_valid[row.number - 1] = False
        bad.append(
            UnreadableRow(
                int(line_numbers[row.number - 1]),
                f"has {row.actual_columns} value{'s' * (row.actual_columns != 1)} for {row.expected_columns} "
                f"columns ({row.text[:_SHOWN_LETTERS]!r}): write one value per column, and quote "
                f"values that contain the delimiter {file.dialect.delimiter!r}",
            )
        )
    places = line_numbers[is_valid]
    if has_header:
        is_header = _are_header(table, read)
        for place in places[is_header].tolist():
            bad.append(UnreadableRow(place, "repeats the column names: remove this line"))
        places, table = places[~is_header], table.filter(pa.array(~is_header)).select(selected)
    columns, as_written = _without_nulls(table, file.dialect.nulls)
    return TableBatch(
        file.name, table.num_rows, columns, "line", lambda: places, bad, padded=padded, as_written=as_written
    )


def _has_line(data: bytes, line: bytes) -> bool:
    """Return whether a text contains a line, such as the header that concatenated files repeat."""
    return data.startswith((line + b"\n", line + b"\r\n")) or any(
        b"\n" + line + end in data for end in (b"\n", b"\r\n")
    )


def _are_header(table: Any, names: list[str]) -> NDArray[np.bool_]:
    """Return a mask of the rows that equal the header."""
    import pyarrow.compute as pc

    is_header = np.ones(table.num_rows, np.bool_)
    for name in names:
        is_header &= pc.equal(table.column(name), name).to_numpy()
    return is_header


def _read(file: TextFile, data: bytes, names: list[str], column_types: dict[str, Any], skip: Any) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    form = file.dialect
    return csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=max(1, len(data)) + 1),
        parse_options=csv.ParseOptions(
            delimiter=form.delimiter,
            quote_char=form.quote or False,
            newlines_in_values=bool(form.quote) and form.quote.encode() in data,
            invalid_row_handler=skip,
        ),
        convert_options=csv.ConvertOptions(
            column_types=column_types,
            include_columns=list(column_types),
            null_values=form.nulls,
            strings_can_be_null=False,
            decimal_point=form.decimal,
        ),
    )


def _without_nulls(table: Any, nulls: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns with null for missing strings, and the original of string columns that have any."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    as_written = {}
    for name, column in columns.items():
        if not pa.types.is_string(column.type):
            continue
        is_null = pc.is_in(column, pa.array(nulls, pa.string()))
        if pc.any(is_null).as_py():
            as_written[name] = column
            columns[name] = pc.if_else(is_null, pa.scalar(None, pa.string()), column)
    return columns, as_written
