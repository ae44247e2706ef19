"""Batch of consecutive table rows: conversion of its Arrow columns to numpy, and a collector of errors."""

from __future__ import annotations

import math
import re
import unicodedata
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr
from hyrt.graph.tables.kernels import read_whole


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """Line that is not a row of the table."""

    place: int
    """Line number, from 1."""
    problem: str
    """The problem, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Consecutive rows of a file."""

    name: str
    """Name of the file in messages."""
    num_rows: int
    columns: Mapping[str, Any]
    """Arrow arrays [n] by column name: numbers, or strings as written in the file."""
    unit: str
    """Unit of `places`: `line` or `row`."""
    places: Callable[[], NDArray[np.int64]]
    """Return the line or row number [n] of each row in its file, from 1."""
    bad: Sequence[UnreadableRow] = ()
    """Rows that were dropped because they cannot be parsed."""
    padded: int = 0
    """Number of values from which surrounding spaces or tabs were removed."""
    as_written: Mapping[str, Any] = field(default_factory=dict)
    """Original strings [n] of the columns with missing values, which are null in `columns`."""

    __repr__ = short_repr


MAX_SHOWN = 20
_SHOWN_LETTERS = 60
SEPARATOR_REMEDY = (
    "Write numbers without thousands separators, and set text.decimal in the schema to their decimal point"
)
_SEPARATED = re.compile(r"[-+]?(?=\d+\D)\d{1,3}([.,'’\s]\d{3})*([.,]\d+)?")
"""Numbers with a thousands separator or a decimal point, such as 1,234 and 1.234,5."""


def find_separated_number(column: Any, decimal: str) -> str | None:
    """Return a string that is a number with separators if most strings are numbers, otherwise None."""
    bad = read_real_numbers(column, decimal)[2]
    strings = column.filter(_as_arrow(bad)).to_pylist()
    separated = [string for string in strings if _SEPARATED.fullmatch(string.strip())]
    num_known = len(column) - column.null_count
    return separated[0] if separated and len(strings) - len(separated) <= 0.2 * num_known else None


class RowProblems:
    """Collector of errors in table rows."""

    def __init__(self) -> None:
        self.total = 0
        self._lines: list[str] = []
        self._remedies: dict[str, None] = {}

    def add_unreadable(self, piece: TableBatch) -> None:
        """Add the rows that could not be parsed."""
        for row in piece.bad:
            self._add(f"{piece.name}, {piece.unit} {row.place}: {row.problem}")

    def add(
        self, piece: TableBatch, column: str, wrong: NDArray[np.bool_], problem: str, remedy: str
    ) -> None:
        """Add the values in a column of a batch where the mask `wrong` [n] is set.

        `problem` completes a sentence, such as `is not an integer`; `remedy` is a sentence.
        """
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        num_shown = max(0, MAX_SHOWN - len(self._lines))
        if num_shown:
            places, values = piece.places(), piece.columns[column]
            as_written = piece.as_written.get(column, values)
            for row in rows[:num_shown].tolist():
                value, word = _to_python(values[row]), _to_python(as_written[row])
                description = (
                    f"{word!r} counts as missing" if value is None and word else _describe(value, problem)
                )
                self._add(f"{piece.name}, {piece.unit} {places[row]}, column {column!r}: {description}")
                if isinstance(value, str) and _SEPARATED.fullmatch(value):
                    self._remedies[SEPARATOR_REMEDY] = None
        self.total += max(0, len(rows) - num_shown)
        self._remedies[remedy] = None

    def add_line(self, line: str, remedy: str) -> None:
        """Add one error by its complete description."""
        self._add(line)
        self._remedies[remedy] = None

    def _add(self, line: str) -> None:
        self.total += 1
        if len(self._lines) < MAX_SHOWN:
            self._lines.append(line)

    def check(self) -> None:
        """Raise DataError if there were errors: the first wrong rows, the total number, and the remedies."""
        if not self.total:
            return
        lines = [
            f"{pluralize(self.total, 'value or row is', 'values or rows are')} wrong; nothing is written"
        ]
        lines += [f"  {line}" for line in self._lines]
        if self.total > len(self._lines):
            lines.append(f"  and {self.total - len(self._lines):,} more")
        lines += list(self._remedies)
        error = DataError("\n".join(lines))
        error.is_multiline = True
        raise error


def _to_python(value: Any) -> Any:
    """Convert an Arrow scalar to Python; times that Python cannot represent become their numbers."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.value


def escaped(value: object) -> str:
    """Format a value as a literal, with ASCII escapes if it is a string with decomposed characters."""
    is_plain = not isinstance(value, str) or unicodedata.is_normalized("NFC", value)
    return repr(value) if is_plain else ascii(value)


def _describe(value: Any, problem: str) -> str:
    if value is None:
        return "the value is missing"
    text = escaped(value)
    return f"{text if len(text) <= _SHOWN_LETTERS else f'{text[:_SHOWN_LETTERS]}...'} {problem}"


Array = NDArray[Any]
Flags = NDArray[np.bool_]

_MARKERS = (-(2**63), 2**63 - 1)
"""Markers of unknown times, so they are not times."""
_EXACT = 2.0**53
"""From this value on, float64 does not represent every integer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CODE = re.compile(r"\s*[-+]?(\d+|\d+[.,]?\d*[eE][-+]?\d+)\s*|0[xX][0-9a-fA-F]+")
"""Strings that a program may read as integers."""
_OTHER_TEXTS = ("large_string", "string_view", "binary", "large_binary", "fixed_size_binary")
"""Prefixes of Arrow's string types other than `string`."""


def read_whole_numbers(column: Any, decimal: str = ".") -> tuple[NDArray[np.int64], Flags, Flags]:
    """Convert a column to int64 [n] (0 if missing or invalid), a mask of missing and a mask of invalid
    values.

    Numbers may be written as 3.0. Strings must have the canonical spelling: 007, +1 and non-ASCII digits are
    invalid, not 7 and 1. `column` is an Arrow array of numbers, bools or strings; `decimal` is the decimal
    point in strings.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = decode_column(column)
    missing = _missing(column)
    bad = np.zeros(len(column), np.bool_)
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        if column.type == pa.uint64():
            beyond = pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())).fill_null(False)
            bad = beyond.to_numpy(zero_copy_only=False)
            column = pc.if_else(beyond, pa.scalar(None, pa.uint64()), column)
        return pc.cast(column, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), missing, bad
    if pa.types.is_string(column.type):
        values = np.empty(len(column), np.int64)
        data, offsets = get_string_buffers(column)
        read_whole(data, offsets, missing, ord(decimal), values, bad)
        return values, missing, bad
    # Programs write missing integers as NaN in a floating-point column.
    real, missing, bad = read_real_numbers(column, decimal)
    with np.errstate(invalid="ignore"):
        whole = (real == np.floor(real)) & (np.abs(real) < max_exact_integer(column))
    bad |= ~missing & ~whole
    return np.where(whole, real, 0).astype(np.int64), missing, bad


def max_exact_integer(column: Any) -> float:
    """Return the number from which on a column does not represent every integer."""
    digits = {"halffloat": 11, "float": 24}.get(str(column.type), 53)
    return 2.0**digits


def has_codes(column: Any, bad: Flags) -> bool:
    """Return whether strings that `read_whole_numbers` refuses include numbers in another form, such as 007
    or +1.

    Ids and classes in this form must stay strings, because 007 and 7 would be the same number.
    """
    strings = decode_column(column).filter(_as_arrow(bad)).to_pylist()
    return any(isinstance(string, str) and _CODE.fullmatch(string) is not None for string in strings)


def read_real_numbers(column: Any, decimal: str = ".") -> tuple[NDArray[np.float64], Flags, Flags]:
    """Convert a column to float64 [n], NaN if missing or invalid; see `read_whole_numbers`.

    Infinity is invalid, NaN is missing. Numbers with thousands separators are invalid, and so is 1.234 if the
    decimal point is a comma.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = decode_column(column)
    missing = _missing(column)
    bad = np.zeros(len(column), np.bool_)
    kind = column.type
    if pa.types.is_string(kind):
        trimmed = pc.utf8_trim_whitespace(column)
        if decimal != ".":
            # 1.234 may be 1234 with a thousands separator: make it invalid.
            is_ambiguous = pc.match_substring_regex(trimmed, r"^[-+]?[1-9][0-9]{0,2}[.][0-9]{3}$")
            trimmed = pc.replace_substring(trimmed, decimal, ".")
            trimmed = pc.if_else(is_ambiguous, "ambiguous", trimmed)
        try:
            numbers = pc.cast(trimmed, pa.float64())
        except pa.ArrowInvalid:
            values = np.full(len(column), np.nan)
            for index, text in enumerate(trimmed.to_pylist()):
                if text is not None:
                    values[index] = _number(text)
                    bad[index] = math.isnan(values[index])
            bad |= np.isinf(values)
            return values, missing, bad
    elif pa.types.is_boolean(kind):
        numbers = pc.cast(column, pa.int8()).cast(pa.float64())
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        numbers = pc.cast(column, pa.float64(), safe=False)
    elif pa.types.is_null(kind):
        return np.full(len(column), np.nan), missing, bad
    else:
        return np.full(len(column), np.nan), missing, ~missing
    values = numbers.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    missing = missing | np.isnan(values)
    return values, missing, np.isinf(values)


def convert_bools(column: Any) -> Any:
    """Convert a column that has only strings such as True and False to bools; return others unchanged."""
    import pyarrow as pa
    import pyarrow.compute as pc

    decoded = decode_column(column)
    if not pa.types.is_string(decoded.type) or decoded.null_count == len(decoded):
        return column
    flags = pc.equal(pc.utf8_lower(decoded), "true")
    are_bools = pc.or_(flags, pc.equal(pc.utf8_lower(decoded), "false"))
    return flags if pc.all(are_bools).as_py() else column


def read_strings(column: Any) -> tuple[Any, Flags]:
    """Convert a column to an Arrow array of strings, and a mask of missing values.

    Whole numbers have no decimal point.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = decode_column(column)
    missing = _missing(column)
    if pa.types.is_string(column.type):
        return column, missing
    if pa.types.is_floating(column.type):
        numbers, missing, bad = read_whole_numbers(column)
        whole = pc.cast(pa.array(numbers, mask=missing), pa.string())
        return pc.if_else(pa.array(bad), pc.cast(column, pa.string()), whole), missing
    return pc.cast(column, pa.string()), missing


def count_nan(column: Any) -> int:
    """Return the number of NaN values in a column; 0 unless the column is floating-point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return 0
    return int(pc.sum(pc.is_nan(column)).as_py() or 0)


def check_texts(column: Any) -> None:
    """Raise DataError if `read_strings` does not support the type of a column, such as lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.cast(column.slice(0, 0), pa.string())
    except pa.ArrowNotImplementedError:
        raise DataError(f"has values of unsupported type {column.type}: use strings or numbers") from None


def get_string_buffers(column: Any) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the bytes of all strings of an Arrow array [n], and the offsets [n + 1] of the strings."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32) if offsets is not None else np.zeros(1, np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8), bounds


class ListMatrix(NamedTuple):
    """Rows of a column of lists."""

    values: NDArray[np.float64]
    """[n, width], nan for missing and wrong rows."""
    missing: Flags
    """[n] whether a list or one of its values is missing."""
    wrong: Flags
    """[n] whether a list has values that are not numbers."""
    lengths: NDArray[np.int64]
    """[n]; lists with another length than the width are neither missing nor wrong."""


def is_list_column(column: Any) -> bool:
    """Return whether the values of a column are lists."""
    import pyarrow as pa

    kind = column.type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def read_list_matrix(column: Any, width: int | None = None) -> ListMatrix:
    """Convert a column of lists to a matrix; `width` is the length of lists, by default that of the first."""
    import pyarrow as pa

    missing = _missing(column)
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if width is None:
        width = 0 if missing.all() else int(lengths[~missing][0])
    values = np.full((len(column), width), np.nan)
    wrong = np.zeros(len(column), np.bool_)
    good = ~missing & (lengths == width)
    inner, _, is_invalid = read_real_numbers(column.filter(pa.array(good)).flatten())
    values[good] = inner.reshape(-1, width) if width else 0
    if is_invalid.any():
        wrong[np.flatnonzero(good)[is_invalid.reshape(-1, width).any(axis=1)]] = True
    return ListMatrix(values, missing | (good & np.isnan(values).any(axis=1)), wrong, lengths)


def decode_column(column: Any) -> Any:
    """Convert an Arrow array to the basic type for its values; all string and binary types become strings.

    Raises DataError if binary values are not UTF-8 text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if getattr(column.type, "extension_name", "") == "arrow.uuid":
        storage = column.storage.to_pylist()
        known = [None if value is None else str(uuid.UUID(bytes=value)) for value in storage]
        return pa.array(known, pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        return decode_column(column.storage)
    if str(column.type).startswith(_OTHER_TEXTS):
        try:
            return pc.cast(column, pa.string())
        except pa.ArrowInvalid:
            raise DataError(
                "has binary values that are not UTF-8 text: convert them to text, such as hexadecimal"
            ) from None
    return column


def _as_arrow(flags: Flags) -> Any:
    import pyarrow as pa

    return pa.array(flags)


def _missing(column: Any) -> Flags:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    flags: Flags = column.is_null().to_numpy(zero_copy_only=False)
    return flags


def _number(text: str) -> float:
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        return math.nan


def are_times(column: Any, decimal: str = ".") -> bool:
    """Return whether all values of a column are times."""
    column = decode_column(column)
    kind = find_time_kind(column, decimal)
    if not kind:
        return False
    found = convert_times(column, kind, decimal)
    return not (found.wrong | found.beyond).any()


UNIX_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_UNIX_TIMES = (315_532_800, 4_102_444_800)
"""Seconds from 1970 to the years 1980 and 2100."""
_UNIX_BOUNDS = np.outer(10 ** np.array([0, 3, 6, 9]), _UNIX_TIMES).ravel()


def find_unix_intervals(times: NDArray[Any]) -> NDArray[np.int64]:
    """Return 2 u + 1 for each time [n] that is in the years 1980 to 2099 in unit u of `UNIX_UNITS`.

    Times between the intervals of the units, such as years or counters, have even numbers.
    """
    return np.searchsorted(_UNIX_BOUNDS, times, side="right")


def find_unix_unit(times: NDArray[Any]) -> str:
    """Return the unit in which all times are times since 1970 in the years 1980 to 2099; empty if none."""
    intervals = find_unix_intervals(np.array([times.min(), times.max()]) if len(times) else times)
    is_unix = len(times) and intervals[0] == intervals[1] and intervals[0] % 2
    return UNIX_UNITS[intervals[0] // 2] if is_unix else ""


@dataclass(frozen=True, slots=True)
class ConvertedTimes:
    """Times of a column on the scale of the dataset."""

    times: NDArray[Any]
    """[n] int64 or float64."""
    wrong: Flags
    """[n] whether a value is missing or has another format."""
    beyond: Flags
    """[n] whether a time is not representable."""
    num_rounded: int = 0
    zones: Collection[bool] = ()
    """Whether dates have a time zone; both values if only some dates have one."""

    __repr__ = short_repr


def find_time_kind(column: Any, decimal: str) -> str:
    """Return the format of times: `dates`, `numbers`, or `exact` for integers that float64 would round.

    Empty if no value is a time.
    """
    if _is_temporal(column):
        return "dates"
    numbers, missing, bad = read_real_numbers(column, decimal)
    good = ~(missing | bad)
    if (np.abs(numbers[good]) >= _EXACT).any() and not _whole(column)[1][good].any():
        return "exact"
    if good.any():
        return "" if str(column.type) == "bool" else "numbers"
    return "" if _read_dates(column).wrong.all() else "dates"


def convert_times(column: Any, kind: str, decimal: str) -> ConvertedTimes:
    """Convert times of a format to int64 microseconds since 1970 (`dates`), int64 (`exact`) or float64."""
    import pyarrow as pa

    if kind == "dates":
        return _read_dates(column)
    if kind == "exact":
        values, wrong = _whole(column)
        return ConvertedTimes(values, wrong, ~wrong & np.isin(values, _MARKERS))
    numbers, missing, bad = read_real_numbers(column, decimal)
    beyond = np.abs(numbers) >= _EXACT
    if pa.types.is_floating(column.type) or not beyond.any():
        beyond[:] = False
    else:
        beyond &= ~_whole(column)[1]
    return ConvertedTimes(numbers, missing | bad, beyond)


def _whole(column: Any) -> tuple[NDArray[np.int64], Flags]:
    """Return exact int64 [n], and a mask of missing or other values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        column = pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
        numbers = pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        numbers = pa.array([_int64(value) for value in column.to_pylist()], pa.int64())
    wrong = np.asarray(numbers.is_null().to_numpy(zero_copy_only=False), np.bool_)
    return numbers.fill_null(0).to_numpy(zero_copy_only=False), wrong


def _int64(value: Any) -> int | None:
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 and str(number) == str(value).strip() else None


def _is_temporal(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(column.type) or pa.types.is_date(column.type))


_MICROSECONDS = {"s": 10**6, "ms": 10**3, "us": 1}
_FINER_FRACTION = re.compile(r".*[.,]\d{6}\d*[1-9]")


def _read_dates(column: Any) -> ConvertedTimes:
    """Convert dates to microseconds since 1970; dates without a time zone are in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_temporal(column):
        kind = column.type
        whole = pc.cast(column, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(pa.int64())
        values = whole.fill_null(0).to_numpy(zero_copy_only=False)
        missing, zones = _missing(column), [getattr(kind, "tz", None) is not None]
        unit = getattr(kind, "unit", "ms")
        if unit == "ns":
            rounded = values // 1000
            return ConvertedTimes(
                rounded, missing, np.zeros_like(missing), int((values != rounded * 1000).sum()), zones
            )
        scale = 86_400 * 10**6 if pa.types.is_date32(kind) else _MICROSECONDS[unit]
        last = (2**63 - 2) // scale
        beyond = (values > last) | (values < -last)
        return ConvertedTimes(np.where(beyond, 0, values) * scale, missing, beyond, 0, zones)
    times, wrong = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    num_rounded, found_zones = 0, set()
    for index, string in enumerate(column.to_pylist()):
        try:
            # fromisoformat also reads numbers such as 20240531 and 1082040961000.
            time = None if string.strip().isdigit() else datetime.fromisoformat(string.strip())
        except (ValueError, AttributeError):
            time = None
        if time is None:
            wrong[index] = True
            continue
        found_zones.add(time.tzinfo is not None)
        num_rounded += _FINER_FRACTION.match(string) is not None
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        times[index] = (time - _EPOCH) // timedelta(microseconds=1)
    return ConvertedTimes(times, wrong, np.zeros_like(wrong), num_rounded, found_zones)
