"""Mapping of vertex ids in tables, integers or strings, to vertex numbers, and search for the id column."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.tables import kernels as name_kernels
from hyrt.graph.tables.schema import CsvDialect
from hyrt.graph.tables.table_batch import (
    RowProblems,
    TableBatch,
    decode_column,
    get_string_buffers,
    max_exact_integer,
    read_real_numbers,
    read_strings,
    read_whole_numbers,
)
from hyrt.graph.tables.table_files import TableFiles, TableSample, list_table_files

NAME_BYTES = 56
"""Upper bound of the memory per name, without three times its length in bytes."""
_MIN_NAMES = 1 << 12
_MAX_ODD = 1 << 20
"""Number of names whose spelling as numbers is compared, which takes about 10 s."""
_NAMES_AT_ONCE = 1 << 16
_PADDING = np.frombuffer(b" \t", np.uint8)
_POINTS = np.frombuffer(b".,", np.uint8)


def _as_seen(name: str) -> str:
    """Return the visible form of a name: composed accents, no outer spaces, no invisible characters."""
    plain = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFC", plain).strip()


class NameIndex:
    """Mapping from names to numbers; new names get the next number."""

    def __init__(self) -> None:
        self.num = 0
        """Number of names."""
        self._slots = np.full(2 * _MIN_NAMES, -1, np.int64)
        self._ends = np.zeros(_MIN_NAMES + 1, np.int64)
        self._bytes = np.empty(16 * _MIN_NAMES, np.uint8)

    def add(self, names: Any, missing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Add the new names of an Arrow array of strings [n]; return all their numbers, -1 if missing."""
        data, offsets = get_string_buffers(names)
        self._reserve(len(names), int(offsets[-1] - offsets[0]))
        out = np.empty(len(names), np.int64)
        self.num = int(
            name_kernels.add_names(
                data, offsets, missing, self._slots, self._bytes, self._ends, self.num, out
            )
        )
        return out

    def find(self, names: Any, missing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the numbers of names; -1 for unknown names."""
        data, offsets = get_string_buffers(names)
        out = np.empty(len(names), np.int64)
        name_kernels.find_names(data, offsets, missing, self._slots, self._bytes, self._ends, out)
        return out

    def name(self, number: int) -> str:
        return self._bytes[self._ends[number] : self._ends[number + 1]].tobytes().decode()

    def find_lookalikes(self) -> Iterator[tuple[str, str]]:
        """Yield names that look like another name, together with that name.

        They differ by surrounding spaces, invisible characters, or decomposed accents.
        """
        import pyarrow as pa

        for start in range(0, self.num, _NAMES_AT_ONCE):
            ends = self._ends[start : min(start + _NAMES_AT_ONCE, self.num) + 1]
            filled = np.flatnonzero(ends[1:] > ends[:-1])
            first, last = self._bytes[ends[filled]], self._bytes[ends[filled + 1] - 1]
            padded = filled[np.isin(first, _PADDING) | np.isin(last, _PADDING)]
            beyond_ascii = ends[0] + np.flatnonzero(self._bytes[ends[0] : ends[-1]] >= 0x80)
            special = np.searchsorted(ends, beyond_ascii, side="right") - 1
            for number in np.union1d(padded, special):
                name = self.name(start + int(number))
                seen = _as_seen(name)
                if seen == name:
                    continue
                if self.find(pa.array([seen], pa.string()), np.zeros(1, np.bool_))[0] >= 0:
                    yield name, seen

    def find_equal_numbers(self) -> Iterator[tuple[str, str]]:
        """Yield names that are another spelling of a number, such as 1.0, together with the name 1."""
        import pyarrow as pa

        for block in self._odd_numbers():
            names = pa.array(block, pa.string())
            plain = spell_numbers(names)
            numbers = self.find(plain, np.zeros(len(plain), np.bool_))
            for row in np.flatnonzero(numbers >= 0).tolist():
                if block[row] != (spelled := plain[row].as_py()):
                    yield block[row], spelled

    def count_rounded(self) -> int:
        """Return the number of names that a spreadsheet rounded to six digits, such as 1.23457E+12."""
        return sum(_ROUNDED.fullmatch(name) is not None for block in self._odd_numbers() for name in block)

    def _odd_numbers(self) -> Iterator[list[str]]:
        """Yield the first names that look like numbers but may have a shorter spelling, in blocks."""
        num_found = 0
        for start in range(0, self.num, _NAMES_AT_ONCE):
            ends = self._ends[start : min(start + _NAMES_AT_ONCE, self.num) + 1]
            is_odd = np.zeros(len(ends) - 1, np.bool_)
            if num_found < _MAX_ODD and name_kernels.find_odd_numbers(self._bytes, ends, is_odd):
                num_found += int(is_odd.sum())
                data, odd = self._bytes[ends[0] : ends[-1]].tobytes(), np.flatnonzero(is_odd)
                bounds = zip((ends[odd] - ends[0]).tolist(), (ends[odd + 1] - ends[0]).tolist(), strict=True)
                yield [data[first:last].decode() for first, last in bounds]

    def read_integers(self) -> NDArray[np.int64] | None:
        """Return the names as integers [num], with 3 for 3.0; None if some are not integers."""
        ends = self._ends[: self.num + 1]
        data = self._bytes[: ends[-1]]
        decimal = "," if (data == ord(",")).any() else "."
        values, bad = np.empty(self.num, np.int64), np.empty(self.num, np.bool_)
        name_kernels.read_whole(data, ends, np.zeros(self.num, np.bool_), ord(decimal), values, bad)
        return None if bad.any() else values

    def merge_integers(self) -> tuple[NDArray[np.int64], int] | None:
        """Spell all names as integers, i.e. 3.0 as 3, if all are integers.

        Returns the new number [num] of each name, and the number of names with another spelling; None if no
        name changes. Names in a mix of integers and others, such as the versions 1.0, 1.1 and 1.10, stay.
        """
        import pyarrow as pa

        used = self._bytes[: self._ends[self.num]]
        if not np.isin(used, _POINTS).any() or (values := self.read_integers()) is None:
            return None
        changed = sum("." in name or "," in name for block in self.blocks() for name in block)
        merged, numbers = NameIndex(), np.empty(self.num, np.int64)
        for start in range(0, self.num, _NAMES_AT_ONCE):
            part = slice(start, start + _NAMES_AT_ONCE)
            names = pa.array(values[part]).cast(pa.string())
            numbers[part] = merged.add(names, np.zeros(len(names), np.bool_))
        self.num, self._slots = merged.num, merged._slots
        self._ends, self._bytes = merged._ends, merged._bytes
        return numbers, changed

    def blocks(self) -> Iterator[list[str]]:
        """Yield all names in the order of their numbers, in blocks."""
        for start in range(0, self.num, _NAMES_AT_ONCE):
            ends = self._ends[start : min(start + _NAMES_AT_ONCE, self.num) + 1]
            data = self._bytes[ends[0] : ends[-1]].tobytes()
            bounds = (ends - ends[0]).tolist()
            yield [data[a:b].decode() for a, b in itertools.pairwise(bounds)]

    def _reserve(self, names: int, num_bytes: int) -> None:
        """Grow the arrays for additional names with a total length of `num_bytes`."""
        if self.num + names >= len(self._ends):
            grown = np.zeros(2 * (self.num + names) + 1, np.int64)
            grown[: self.num + 1] = self._ends[: self.num + 1]
            self._ends = grown
        used = int(self._ends[self.num])
        if used + num_bytes > len(self._bytes):
            grown_bytes = np.empty(2 * (used + num_bytes), np.uint8)
            grown_bytes[:used] = self._bytes[:used]
            self._bytes = grown_bytes
        if 2 * (self.num + names) > len(self._slots):
            # Free the old array first to lower peak memory.
            self._slots = np.empty(0, np.int64)
            self._slots = np.full(1 << int(2 * (self.num + names) - 1).bit_length(), -1, np.int64)
            name_kernels.fill_slots(self._bytes, self._ends, self.num, self._slots)


def spell_numbers(names: Any) -> Any:
    """Return strings [n] with the shortest decimal spelling of each number: 7 for 007, 1.1 for 1.10."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = names
    for pattern, replacement in _SHORTER:
        plain = pc.replace_substring_regex(plain, pattern, replacement)
    plain = pc.if_else(pc.match_substring_regex(names, r"^[-+]?[0-9]+([.][0-9]*)?$"), plain, names)
    has_exponent = pc.match_substring_regex(names, r"^[-+]?[0-9]+([.][0-9]*)?[eE][-+]?[0-9]{1,2}$")
    if not pc.any(has_exponent).as_py():
        return plain
    written = names.filter(has_exponent.fill_null(False)).to_pylist()
    shorter = spell_numbers(pa.array([f"{Decimal(name):f}" for name in written], pa.string()))
    return pc.replace_with_mask(plain, has_exponent.fill_null(False), shorter)


def spell_integers(names: Any) -> Any:
    """Return the strings [n], with integers written without a decimal point: 3 instead of 3.0."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(names, r"^(0|-?[1-9][0-9]*)[.,]0*$", r"\1")


_SHORTER = (
    ("^[+]", ""),
    ("^(-?)0+([0-9])", r"\1\2"),
    ("([.][0-9]*?)0+$", r"\1"),
    ("[.]$", ""),
    ("^-0$", "0"),
)
"""Replacements of regular expressions that shorten the spelling of a number."""
_ROUNDED = re.compile(r"-?\d(\.\d{1,5})?E\+\d\d")


Numbers = NDArray[np.int64]

_MISSING = "Add both ids to every edge; text.nulls in the schema lists the values that count as missing"
NOT_INTEGER_REMEDY = "If ids are strings, or written like 007 or +1, set ids in the schema to names"
"""Remedy for an id that is not written as an integer."""
SPARSE_FACTOR = 8
"""Ids look like consecutive numbers if their range is at most this multiple of the number of ids in use."""
_INT64 = np.iinfo(np.int64)


def report_rounded_ids(piece: TableBatch, column: str, bad: RowProblems) -> NDArray[np.bool_]:
    """Report floating-point ids so large that different integers have become equal; return their mask [n]."""
    import pyarrow as pa

    values = decode_column(piece.columns[column])
    if not pa.types.is_floating(values.type):
        return np.zeros(len(values), np.bool_)
    bound = max_exact_integer(values)
    rounded = np.abs(read_real_numbers(values)[0]) >= bound
    bad.add(
        piece,
        column,
        rounded,
        f"is not exact, because {values.type} values round integers above {bound:,.0f}",
        "Write ids as integers or strings (some programs convert integers to floats if one is missing)",
    )
    return rounded


class VertexIds(Protocol):
    """Mapping from vertex ids to vertex numbers."""

    def map_ids(self, piece: TableBatch, column: str, unknown: str, bad: RowProblems) -> Numbers:
        """Return the vertex numbers [n] of the ids in a column; -1 for wrong ids and dropped unknown ids."""

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices that are known so far."""

    def iter_names(self) -> Iterator[object] | None:
        """Return the ids of all vertices in the order of their numbers; None if the ids are these numbers."""


@dataclass(slots=True)
class IntegerIds:
    """Integer ids, numbered from the first id on.

    If the number of vertices is not known, only ids that occur in edges are vertices; `compact` numbers them
    after all edges were read.
    """

    first: int
    count: int | None
    """Number of vertices; None while it depends on the edges."""
    decimal: str
    limit: int
    """Upper bound of the number of vertices."""
    largest: int = -1
    smallest: int = _INT64.max
    """`smallest` and `largest` are the extreme ids so far, relative to the first id."""
    used_ids: NDArray[np.int64] | None = None
    """Sorted ids in use, if there are unused ids between them."""
    from_table: bool = True
    """Whether there is a vertex table; used in messages."""

    __repr__ = short_repr

    @property
    def num_vertices(self) -> int:
        return self.largest + 1 if self.count is None else self.count

    def iter_names(self) -> Iterator[object] | None:
        if self.used_ids is not None:
            return map(int, self.used_ids)
        return iter(range(self.first, self.first + self.num_vertices)) if self.first else None

    def map_ids(self, piece: TableBatch, column: str, unknown: str, bad: RowProblems) -> Numbers:
        values, missing, wrong = read_whole_numbers(piece.columns[column], self.decimal)
        if missing.any() or wrong.any():
            bad.add(piece, column, missing, "is not a valid id", _MISSING)
            wrong &= ~report_rounded_ids(piece, column, bad)
            bad.add(piece, column, wrong, "is not an integer", NOT_INTEGER_REMEDY)
        last = self.first + (self.limit if self.count is None else self.count) - 1
        good = ~(missing | wrong)
        outside = good & ((values < self.first) | (values > last))
        if outside.any():
            self._report_outside(piece, column, values, outside, unknown, bad, last)
        numbers = values - self.first
        numbers[~good | outside] = -1
        if self.count is None and len(numbers):
            self.largest = max(self.largest, int(numbers.max()))
            self.smallest = min(self.smallest, int(numbers[numbers >= 0].min(initial=self.smallest)))
        return numbers

    def compact(self, pieces: Iterator[Numbers]) -> NDArray[np.int64]:
        """Keep the ids that are in use, and number them in order; `pieces` yields all results of `map_ids`.

        Returns the new number of each old number, [largest - smallest + 1], starting at the smallest one.
        """
        is_used = np.zeros(self.largest - self.smallest + 1, np.bool_)
        for numbers in pieces:
            is_used[numbers[numbers >= 0] - self.smallest] = True
        self.used_ids = np.flatnonzero(is_used) + (self.smallest + self.first)
        self.count = len(self.used_ids)
        if self.smallest == 0 and self.count == len(is_used):
            self.used_ids = None
        return np.cumsum(is_used) - 1

    def _report_outside(
        self,
        piece: TableBatch,
        column: str,
        values: Any,
        outside: Any,
        unknown: str,
        bad: RowProblems,
        last: int,
    ) -> None:
        if self.count is not None:
            if unknown == "refuse":
                bad.add(
                    piece,
                    column,
                    outside,
                    f"is not a vertex: {'ids in the vertex table' if self.from_table else 'ids'} range from "
                    f"{self.first:,} to {last:,}",
                    ("Add these vertices to their table" if self.from_table else "Increase num_vertices")
                    + ", or set edges.unknown in the schema to drop, which removes their edges"
                    + ("; if ids start at 1, set first_id to 1" if self.first == 0 else ""),
                )
            return
        bad.add(
            piece,
            column,
            outside & (values < self.first),
            f"is below the first id, {self.first:,}",
            "Set first_id in the schema, or set ids to names if ids are not consecutive",
        )
        bad.add(
            piece,
            column,
            outside & (values > last),
            "is too large for consecutive ids",
            "Set ids in the schema to names, which numbers the ids",
        )


@dataclass(slots=True)
class StringIds:
    """String ids."""

    names: NameIndex
    grows: bool
    """Whether unknown ids are new vertices, i.e. there is no vertex table."""
    are_integers: bool = False
    """Whether all ids of the vertex table are integers, so that 3.0 equals 3."""

    @property
    def num_vertices(self) -> int:
        return self.names.num

    def iter_names(self) -> Iterator[object] | None:
        return (name for block in self.names.blocks() for name in block)

    def map_ids(self, piece: TableBatch, column: str, unknown: str, bad: RowProblems) -> Numbers:
        ids, missing = read_strings(piece.columns[column])
        if missing.any():
            bad.add(piece, column, missing, "is not a valid id", _MISSING)
        report_rounded_ids(piece, column, bad)
        if self.grows:
            return self.names.add(ids, missing)
        if self.are_integers:
            ids = spell_integers(ids)
        numbers = self.names.find(ids, missing)
        if unknown == "refuse":
            bad.add(
                piece,
                column,
                (numbers < 0) & ~missing,
                "is not in the vertex table",
                "Spell these ids as in the vertex table, add them to the table, or set edges.unknown in the "
                "schema to drop, which removes their edges",
            )
        return numbers


def find_matching_columns(
    samples: Sequence[TableSample], edges: TableSample, ends: tuple[str, str]
) -> list[str]:
    """Return the columns of distinct values in a vertex table that contain all ids in a sample of edges.

    `samples` are the parts of the vertex table; `ends` are the columns of edges with the ids. Ids that are
    not integers are only compared with small tables.
    """
    sample = samples[0]
    if {edges.columns[end] for end in ends} != {"whole"}:
        is_small = len(samples) == 1 and sample.is_whole
        names = {name for end in ends for name in _read_ids(edges, end) if name is not None}
        columns = [name for name, kind in sample.columns.items() if kind in ("whole", "code", "text")]
        values_by_column = {name: _read_ids(sample, name) for name in columns if is_small}
        return [
            name
            for name, values in values_by_column.items()
            if len(set(values)) == len(values) and names <= set(values)
        ]
    used: set[int] = set()
    for end in ends:
        values, missing, bad = read_whole_numbers(edges.rows[end], edges.decimal)
        used |= set(values[~(missing | bad)].tolist())
    found = {}
    for name, kind in sample.columns.items():
        values, missing, bad = read_whole_numbers(sample.rows[name], sample.decimal)
        if kind == "whole" and not (missing | bad).any() and len(np.unique(values)) == len(values):
            found[name] = values
    if found and (len(samples) > 1 or not sample.is_whole):
        files = TableFiles(
            [path for part in samples for path in list_table_files(part.path)], sample.dialect or CsvDialect()
        )
        parts: dict[str, list[Numbers]] = {name: [] for name in found}
        for piece in files.batches(dict.fromkeys(found, "text")):
            for name, blocks in parts.items():
                blocks.append(read_whole_numbers(piece.columns[name], sample.decimal)[0])
        found = {name: np.concatenate(blocks) for name, blocks in parts.items()}
    ids = np.array(sorted(used), np.int64)
    return [
        name
        for name, values in found.items()
        if np.isin(ids, values).all() and len(np.unique(values)) == len(values)
    ]


def find_id_column(
    sample: TableSample, edges: TableSample, source: str, matching: Sequence[str]
) -> str | None:
    """Return the column of a vertex table that edges refer to; None if none seems to contain ids.

    `matching` has the columns that contain all ids. Otherwise, the first column and columns of strings are
    possible. None if several columns other than the first one match.
    """
    first = next(iter(sample.columns))
    if matching:
        return first if first in matching else matching[0] if len(matching) == 1 else None
    used_ids = set(_read_ids(edges, source))
    best, max_common = None, 0
    for column, kind in sample.columns.items():
        # Whole numbers in a later column are more likely a feature.
        if kind != "text" and (kind not in ("whole", "code") or column != first):
            continue
        values = _read_ids(sample, column)
        if len(set(values)) < len(values):
            continue
        common = len(used_ids.intersection(values))
        # Numbers that are not ids may also share a few values with the ids.
        if common > max_common and 2 * common >= min(len(used_ids), len(values)):
            best, max_common = column, common
    return best


def _read_ids(sample: TableSample, column: str) -> list[Any]:
    ids: list[Any] = spell_integers(read_strings(sample.rows[column])[0]).to_pylist()
    return ids
