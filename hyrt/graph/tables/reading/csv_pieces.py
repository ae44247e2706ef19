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
    """The rows of a file, piece by piece.

    Parameters
    ----------
    file
        The file.
    kinds
        For each wanted column `number`, `text` or `any`: what is expected in it. A piece in which something
        else is found has texts. Whole numbers that must be as they are written, such as ids, are texts.
    block_bytes
        About how much of the file is a piece; None for the default.
    most_blocks
        How many pieces are read; None for all.

    Raises
    ------
    DataError
        If a column is not in the file or is there twice, or the file cannot be read.
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
        yield from in_order(pool, lambda block: _parsed(file, block, names, kinds, header), blocks, threads)


def _parsed(
    file: TextFile, block: TextBlock, names: list[str], kinds: Mapping[str, str], header: bytes | None
) -> TablePiece:
    import pyarrow as pa

    types = {"number": pa.float64(), "text": pa.string()}
    wanted = {name: types.get(kind, pa.string()) for name, kind in kinds.items()}
    lines = lambda: block.lines  # noqa: E731
    data, padded = block.stripped()
    if header and _has_line(block.raw, header):
        return _read_as_text(file, block, names, list(wanted), has_header=True)
    try:
        table = _read(file, data, names, wanted, None)
    except pa.ArrowInvalid:
        return _read_as_text(file, block, names, list(wanted), has_header=False)
    columns, as_written = _without_nulls(table, file.form.nulls)
    return TablePiece(file.name, table.num_rows, columns, "line", lines, padded=padded, as_written=as_written)


def _read_as_text(
    file: TextFile, block: TextBlock, names: list[str], wanted: list[str], *, has_header: bool
) -> TablePiece:
    """The rows as texts, without those that have other numbers of values than the table has columns.

    If the block has the line of the names again, this is no row either.
    """
    import pyarrow as pa

    found = block.lines
    invalid: list[Any] = []
    bad: list[BadRow] = []

    def skip(row: Any) -> str:
        invalid.append(row)
        return "skip"

    data, padded = block.stripped()
    try:
        data.decode()
    except UnicodeDecodeError:
        # Each line is told; what cannot be read is replaced, so that the rest of the block can be.
        for number, line in enumerate(data.split(b"\n"), block.first_line):
            try:
                line.decode()
            except UnicodeDecodeError:
                shown = line.decode(errors="replace")[:_SHOWN_LETTERS].rstrip("\r")
                bad.append(BadRow(number, f"{shown!r} is not UTF-8 text: give encoding: cp1252"))
        data = data.decode(errors="replace").encode()
    read = names if has_header and len(set(names)) == len(names) else wanted
    table = _read(file, data, names, dict.fromkeys(read, pa.string()), skip)
    if len(found) != table.num_rows + len(invalid):
        raise DataError(
            f"{file.name}, from line {block.first_line} on: records cannot be told apart: close every quote, "
            "or give another letter as text.quote in the schema"
        )
    left = np.ones(len(found), np.bool_)
    for row in invalid:
        left[row.number - 1] = False
        bad.append(
            BadRow(
                int(found[row.number - 1]),
                f"has {row.actual_columns} value{'s' * (row.actual_columns != 1)} for {row.expected_columns} "
                f"columns ({row.text[:_SHOWN_LETTERS]!r}): give one for each, in quotes where it has the "
                f"delimiter {file.form.delimiter!r} in it",
            )
        )
    places = found[left]
    if has_header:
        again = _are_header(table, read)
        for place in places[again].tolist():
            bad.append(BadRow(place, "repeats the names of the columns: leave this line out"))
        places, table = places[~again], table.filter(pa.array(~again)).select(wanted)
    columns, as_written = _without_nulls(table, file.form.nulls)
    return TablePiece(
        file.name, table.num_rows, columns, "line", lambda: places, bad, padded=padded, as_written=as_written
    )


def _has_line(data: bytes, line: bytes) -> bool:
    """Whether a line is in a text; files that were put together repeat the names of their columns."""
    return data.startswith((line + b"\n", line + b"\r\n")) or any(
        b"\n" + line + end in data for end in (b"\n", b"\r\n")
    )


def _are_header(table: Any, names: list[str]) -> NDArray[np.bool_]:
    """Return which rows have the name of each column."""
    import pyarrow.compute as pc

    again = np.ones(table.num_rows, np.bool_)
    for name in names:
        again &= pc.equal(table.column(name), name).to_numpy()
    return again


def _read(file: TextFile, data: bytes, names: list[str], wanted: dict[str, Any], skip: Any) -> Any:
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
            column_types=wanted,
            include_columns=list(wanted),
            null_values=form.nulls,
            strings_can_be_null=False,
            decimal_point=form.decimal,
        ),
    )


def _without_nulls(table: Any, nulls: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns, missing texts as null, and those of texts with some missing as they are written."""
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
