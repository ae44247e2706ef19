"""Inference of a text file's CSV dialect from its first lines."""

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
    """Infer the CSV dialect of a file.

    Parameters
    ----------
    start
        The first bytes of the file, decompressed.

    Returns
    -------
    The dialect. The delimiter is the one that splits most lines into equal numbers of values. The first line
    is a header if it has no number, and if none of its names occurs below in a file without numbers. The
    decimal point is a comma if numbers contain one.
    """
    settings: dict[str, Any] = {}
    whole = start[: start.rfind(b"\n") + 1] or start
    try:
        text = whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        if _are_mostly_utf8(whole):
            text = whole.decode("utf-8-sig", errors="replace")
        else:
            text = whole.decode("cp1252", errors="replace")
            settings["encoding"] = "cp1252"
    lines = [line for line in text.splitlines() if line.strip()]
    while lines and lines[0].startswith(_COMMENTS):
        lines.pop(0)
    lines = lines[:_LINES]
    delimiter = max(_DELIMITERS, key=lambda candidate: _regularity(lines, candidate))
    if not any(_regularity(lines, candidate) > (0, 0) for candidate in _DELIMITERS):
        delimiter = ","
    settings["delimiter"] = delimiter
    quote = _quote(lines, delimiter)
    settings["quote"] = quote
    rows = _rows(lines, delimiter, quote)
    settings["header"] = bool(rows) and not any(_NUMBER.fullmatch(value) for value in rows[0])
    # Concatenated files repeat the header.
    below = {value for row in rows[1:] if row != rows[0] for value in row}
    if below.intersection(rows[0] if rows else ()) - {""} and not any(map(_NUMBER.fullmatch, below)):
        # A first line whose names occur below consists of vertex names.
        settings["header"] = False
    if delimiter != "," and any(_COMMA_NUMBER.fullmatch(value) for row in rows for value in row):
        settings["decimal"] = ","
    defaults = TextForm()
    return TextForm(**{key: value for key, value in settings.items() if value != getattr(defaults, key)})


def _are_mostly_utf8(data: bytes) -> bool:
    """Return whether most lines with non-ASCII characters are valid UTF-8, so that the others are damaged
    UTF-8.
    """
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
    """Split lines into values like the import, i.e. without surrounding spaces."""
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, quotechar=quote, skipinitialspace=True))
    except csv.Error:
        rows = [line.split(delimiter) for line in lines]
    return [[value.strip() for value in row] for row in rows]


def _quote(lines: list[str], delimiter: str) -> str:
    """Return a single quote if most strings are quoted by it and no double quote occurs, otherwise a double
    quote.
    """
    if any('"' in line for line in lines):
        return '"'
    values = [value.strip() for line in lines for value in line.split(delimiter)]
    texts = [value for value in values if value and not _NUMBER.fullmatch(value)]
    quoted = sum(len(value) > 1 and value[0] == value[-1] == "'" for value in texts)
    return "'" if 2 * quoted > len(texts) else '"'


def _regularity(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Return the fraction of lines with the most frequent number of values (above 1), and this number."""
    counts = Counter(map(len, _rows(lines, delimiter)))
    if not counts:
        return 0.0, 0
    width, often = counts.most_common(1)[0]
    return (often / len(lines), width) if width > 1 else (0.0, 0)
