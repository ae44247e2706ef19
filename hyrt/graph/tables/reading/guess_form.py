"""How a file of text is written, from its first lines."""

from __future__ import annotations

import csv
import re
from collections import Counter
from typing import Any

from hyrt.graph.tables.reading.text_form import TextForm

_DELIMITERS = (",", ";", "\t", "|", " ")
_LINES = 100
_COMMENTS = ("#", "%")
_NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*")
_COMMA_NUMBER = re.compile(r"\s*[-+]?\d*,\d+\s*")


def guess_form(start: bytes) -> TextForm:
    """Guess the form of a file.

    Parameters
    ----------
    start
        Its first bytes, unpacked, some lines or all of it.

    Returns
    -------
    The delimiter that cuts most lines into equal numbers of values; a header where the first line has no
    number, and no name that comes again below where all are names; a decimal comma where numbers have one.
    """
    given: dict[str, Any] = {}
    whole = start[: start.rfind(b"\n") + 1] or start
    try:
        text = whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        if _are_mostly_utf8(whole):
            text = whole.decode("utf-8-sig", errors="replace")
        else:
            text = whole.decode("cp1252", errors="replace")
            given["encoding"] = "cp1252"
    lines = [line for line in text.splitlines() if line.strip()]
    while lines and lines[0].startswith(_COMMENTS):
        lines.pop(0)
    lines = lines[:_LINES]
    delimiter = max(_DELIMITERS, key=lambda each: _regularity(lines, each))
    if not any(_regularity(lines, each) > (0, 0) for each in _DELIMITERS):
        delimiter = ","
    given["delimiter"] = delimiter
    quote = _quote(lines, delimiter)
    given["quote"] = quote
    rows = _rows(lines, delimiter, quote)
    given["header"] = bool(rows) and not any(_NUMBER.fullmatch(value) for value in rows[0])
    # Files that were put together repeat the names of their columns.
    below = {value for row in rows[1:] if row != rows[0] for value in row}
    if below.intersection(rows[0] if rows else ()) - {""} and not any(map(_NUMBER.fullmatch, below)):
        # Names of columns among names of vertices are names of vertices, too.
        given["header"] = False
    if delimiter != "," and any(_COMMA_NUMBER.fullmatch(value) for row in rows for value in row):
        given["decimal"] = ","
    defaults = TextForm()
    return TextForm(**{key: value for key, value in given.items() if value != getattr(defaults, key)})


def _are_mostly_utf8(data: bytes) -> bool:
    """Whether most lines with letters beyond ASCII are UTF-8: some bytes of the others are damaged."""
    lines = [line for line in data.split(b"\n") if not line.isascii()]
    good = 0
    for line in lines:
        try:
            line.decode()
        except UnicodeDecodeError:
            continue
        good += 1
    return 2 * good >= len(lines)


def _rows(lines: list[str], delimiter: str, quote: str = '"') -> list[list[str]]:
    """Values as the import reads them: without spaces around them."""
    try:
        found = list(csv.reader(lines, delimiter=delimiter, quotechar=quote, skipinitialspace=True))
    except csv.Error:
        found = [line.split(delimiter) for line in lines]
    return [[value.strip() for value in row] for row in found]


def _quote(lines: list[str], delimiter: str) -> str:
    """A single quote if most texts are in such, and none in double quotes."""
    if any('"' in line for line in lines):
        return '"'
    values = [value.strip() for line in lines for value in line.split(delimiter)]
    texts = [value for value in values if value and not _NUMBER.fullmatch(value)]
    quoted = sum(len(value) > 1 and value[0] == value[-1] == "'" for value in texts)
    return "'" if 2 * quoted > len(texts) else '"'


def _regularity(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Which part of the lines has the most frequent number of values, above 1, and this number."""
    counts = Counter(map(len, _rows(lines, delimiter)))
    if not counts:
        return 0.0, 0
    width, often = counts.most_common(1)[0]
    return (often / len(lines), width) if width > 1 else (0.0, 0)
