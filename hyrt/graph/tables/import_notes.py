"""Notes for the user about values that an import changes or reads as missing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import pluralize
from hyrt.graph.tables.table_batch import TableBatch, count_nan, escaped
from hyrt.graph.tables.vertex_ids import NameIndex

_SHOWN = 5


class ImportNotes:
    """Counter of removed padding and missing values, by table and column."""

    def __init__(self) -> None:
        self._padded: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._missing: dict[tuple[str, str], Counter[str]] = {}
        self._texts: set[tuple[str, str]] = set()
        self._unlabelled: Counter[tuple[str, str, str]] = Counter()
        self._lines: list[str] = []

    def add(self, table: str, piece: TableBatch, columns: Iterable[str] = ()) -> None:
        """Count the removed padding of a batch, and the missing values in `columns`."""
        self._padded[table] += piece.padded
        self._rows[table] += piece.num_rows
        for column in columns:
            values = piece.columns[column]
            counts: Counter[str] = Counter()
            if column in piece.as_written:
                counts.update(piece.as_written[column].filter(values.is_null()).to_pylist())
                self._texts.add((table, column))
            else:
                counts[""] += values.null_count
                counts["nan"] += count_nan(values)
            if counts.total():
                self._missing.setdefault((table, column), Counter()).update(counts)

    def add_unlabelled(self, table: str, column: str, count: int, remedy: str) -> None:
        """Count labels of -1, which mean no label; `remedy` is for a -1 that is a class."""
        self._unlabelled[table, column, remedy] += count

    def add_line(self, line: str) -> None:
        self._lines.append(line)

    def merge_integers(self, kind: str, names: NameIndex) -> NDArray[np.int64] | None:
        """Spell 3.0 as 3 if all names are integers; return the new number of each name, None if unchanged."""
        if (merged := names.merge_integers()) is None:
            return None
        numbers, changed = merged
        self._lines.append(f"{kind}: {changed:,} of {len(numbers):,} are written like 3.0 and read as 3")
        return numbers

    def add_lookalikes(self, kind: str, names: NameIndex) -> None:
        """Note names that look like others: spaces in quotes, decomposed accents, or another spelling of a
        number; and names that a spreadsheet has rounded.
        """
        self._add_pairs(f"some {kind}", itertools.islice(names.find_lookalikes(), _SHOWN), "look the same")
        pairs, count = [], 0
        for count, pair in enumerate(names.find_equal_numbers(), 1):
            if count <= _SHOWN:
                pairs.append(pair)
        self._add_pairs(f"{kind}: {count:,} of {names.num:,}", pairs, "equal another one as numbers")
        if rounded := names.count_rounded():
            self._lines.append(
                f"{kind}: {rounded:,} of {names.num:,} are written like 1.23457E+12, so a spreadsheet has "
                "probably rounded them, and different ones became equal: export them again as text"
            )

    def add_classes(self, classes: Sequence[str]) -> None:
        """Note class names that differ only by capital letters."""
        first: dict[str, str] = {}
        pairs = [
            (first[name.casefold()], name)
            for name in classes
            if first.setdefault(name.casefold(), name) != name
        ]
        signs = [name for name in classes if not any(map(str.isalnum, name))]
        if len(signs) == 1 < len(classes):
            self._lines.append(
                f"class {signs[0]!r} has neither letters nor digits: if it means a missing label, add "
                "it to text.nulls in a schema"
            )
        self._add_pairs("some classes", pairs[:_SHOWN], "differ only in capitalization")

    def _add_pairs(self, kind: str, pairs: Iterable[tuple[str, str]], problem: str) -> None:
        shown = ", ".join(f"{escaped(name)} and {escaped(other)}" for name, other in pairs)
        if shown:
            self._lines.append(
                f"{kind} {problem} ({shown}): if they are the same, spell them the same way in the file"
            )

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        for table, count in self._padded.items():
            if count:
                yield (
                    f"{table}: removed spaces or tabs around {pluralize(count, 'value')} (those within "
                    "quotes are kept)"
                )
        for (table, column), words in self._missing.items():
            shown = [
                f"{repr(word) if word else 'empty'} {count:,}"
                for word, count in words.most_common(_SHOWN)
                if count
            ]
            line = (
                f"{table}, column {column!r}: {words.total():,} of {self._rows[table]:,} values count as "
                f"missing ({', '.join(shown)})"
            )
            if set(words) - {""} and (table, column) in self._texts:
                line += ": if one of these is a real value, remove it from text.nulls in a schema"
            yield line
        for (table, column, remedy), count in self._unlabelled.items():
            if count:
                yield (
                    f"{table}, column {column!r}: {count:,} of {self._rows[table]:,} values are -1, which "
                    f"means no label: {remedy}"
                )
        yield from self._lines
