"""Pieces of a CSV file, parsed by several threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import in_order
from hyrt.graph.tables.reading.table_piece import BadRow, TablePiece
from hyrt.graph.tables.reading.text_blocks import TextBlock, TextFile
from hyrt.machine.cores import available_cores

_SHOWN_LETTERS = 60


def csv_pieces(
    file: TextFile,
    kinds: Mapping[str, str],
    *,
    block_bytes: int | None = None,
    most_blocks: int | None = None,
) -> Iterator[TablePiece]:
    """Yield the rows of a file in pieces.

    Parameters
    ----------
    file
        The file.
    kinds
        Expected kind of each requested column: `number`, `text` or `any`. If a piece has other values, its
        column is returned as strings. Integers whose spelling matters, such as ids, are requested as `text`.
    block_bytes
        Approximate size of a piece in the file, in bytes; None for the default.
    most_blocks
        Maximum number of pieces; None for all.

    Raises
    ------
    DataError
        If a column is missing or not unique, or the file cannot be read.
    """
    names = file.columns()
    for name in kinds:
        if names.count(name) > 1:
            raise DataError(
                f"{file.name}: has {names.count(name)} columns {name!r}: give them different names"
            )
    header = file.header_line()
    threads = available_cores()
    with ThreadPoolExecutor(threads) as pool:
        blocks = itertools.islice(file.blocks(block_bytes), most_blocks)
        yield from in_order(pool, lambda block: _parse(file, block, names, kinds, header), blocks, threads)


def _parse(
    file: TextFile, block: TextBlock, names: list[str], kinds: Mapping[str, str], header: bytes | None
) -> TablePiece:
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
    columns, as_written = _without_nulls(table, file.form.nulls)
    return TablePiece(file.name, table.num_rows, columns, "line", lines, padded=padded, as_written=as_written)


def _read_as_text(
    file: TextFile, block: TextBlock, names: list[str], wanted: list[str], *, has_header: bool
) -> TablePiece:
    """Parse a block into strings, without the rows whose number of values is not the number of columns.

    If the block contains the header line again, it is dropped as well.
    """
    import pyarrow as pa

    line_numbers = block.lines
    invalid: list[Any] = []
    bad: list[BadRow] = []

    def skip(row: Any) -> str:
        invalid.append(row)
        return "skip"

    data, padded = block.stripped()
    try:
        data.decode()
    except UnicodeDecodeError:
        # Report each line, and replace the invalid bytes so that the rest of the block can be parsed.
        for number, line in enumerate(data.split(b"\n"), block.first_line):
            try:
                line.decode()
            except UnicodeDecodeError:
                shown = line.decode(errors="replace")[:_SHOWN_LETTERS].rstrip("\r")
                bad.append(BadRow(number, f"{shown!r} is not UTF-8 text: give encoding: cp1252"))
        data = data.decode(errors="replace").encode()
    read = names if has_header and len(set(names)) == len(names) else wanted
    table = _read(file, data, names, dict.fromkeys(read, pa.string()), skip)
    if len(line_numbers) != table.num_rows + len(invalid):
        raise DataError(
            f"{file.name}, from line {block.first_line} on: records cannot be told apart: close every quote, "
            "or give another letter as text.quote in the schema"
        )
    is_valid = np.ones(len(line_numbers), np.bool_)
    for row in invalid:
        is_valid[row.number - 1] = False
        bad.append(
            BadRow(
                int(line_numbers[row.number - 1]),
                f"has {row.actual_columns} value{'s' * (row.actual_columns != 1)} for {row.expected_columns} "
                f"columns ({row.text[:_SHOWN_LETTERS]!r}): give one for each, in quotes where it has the "
                f"delimiter {file.form.delimiter!r} in it",
            )
        )
    places = line_numbers[is_valid]
    if has_header:
        is_header = _are_header(table, read)
        for place in places[is_header].tolist():
            bad.append(BadRow(place, "repeats the names of the columns: leave this line out"))
        places, table = places[~is_header], table.filter(pa.array(~is_header)).select(wanted)
    columns, as_written = _without_nulls(table, file.form.nulls)
    return TablePiece(
        file.name, table.num_rows, columns, "line", lambda: places, bad, padded=padded, as_written=as_written
    )


def _has_line(data: bytes, line: bytes) -> bool:
    """Return whether a text contains a line, such as the header that concatenated files repeat."""
    return data.startswith((line + b"\n", line + b"\r\n")) or any(
        b"\n" + line + end in data for end in (b"\n", b"\r\n")
    )


def _are_header(table: Any, names: list[str]) -> NDArray[np.bool_]:
    """Return which rows equal the header."""
    import pyarrow.compute as pc

    is_header = np.ones(table.num_rows, np.bool_)
    for name in names:
        is_header &= pc.equal(table.column(name), name).to_numpy()
    return is_header


def _read(file: TextFile, data: bytes, names: list[str], column_types: dict[str, Any], skip: Any) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    form = file.form
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
    """Return the columns with null for missing strings, and the original of each string column with missing
    values.
    """
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
