"""Reading of a vertex table: ids, labels, splits and features."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr
from hyrt.graph.formats.npy import NpyWriter, map_npy, rows_per_chunk
from hyrt.graph.formats.schema import FeatureRows
from hyrt.graph.labels import is_labelled
from hyrt.graph.metadata import normalize_name
from hyrt.graph.tables.columns import (
    FLOAT32_MAX,
    FeatureColumns,
    SuspiciousColumns,
    find_column,
    format_columns,
    format_reasons,
    match_columns,
    sort_names,
)
from hyrt.graph.tables.import_notes import ImportNotes
from hyrt.graph.tables.schema import VertexTableSchema
from hyrt.graph.tables.table_batch import (
    MAX_SHOWN,
    RowProblems,
    TableBatch,
    read_real_numbers,
    read_strings,
    read_whole_numbers,
)
from hyrt.graph.tables.table_files import TableFiles, TableSample
from hyrt.graph.tables.vertex_ids import (
    NOT_INTEGER_REMEDY,
    IntegerIds,
    NameIndex,
    StringIds,
    VertexIds,
    report_rounded_ids,
)

Array = NDArray[Any]

SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
    **dict.fromkeys(("none", "unused", "-", ""), -1),
}
SPLIT_COLUMNS = ("split", "part", "subset", "set")
MASK_COLUMNS = (
    ("train", "trainmask", "istrain"),
    ("val", "valmask", "valid", "validmask", "validation", "isval", "isvalid", "isvalidation"),
    ("test", "testmask", "istest"),
)
MAX_CLASSES = 1 << 20
_MIN_LABELLED = 20
"""With fewer labels, each label may have a different class."""
_LABELS = (
    "Use integers from 0 for classes and -1 for no label, or set label_kind in the schema to names for other "
    "labels"
)


@dataclass(frozen=True, slots=True)
class VertexTableData:
    """Content of a vertex table."""

    count: int
    labels: Array
    masks: tuple[Array, Array, Array] | None
    """Masks of training, validation and test; None if the table has no split."""
    rows: FeatureRows | None
    """Features; None if the table has none."""
    ids: VertexIds
    classes: list[str]
    """Names of the classes; empty if classes are numbers."""
    columns: list[str]
    """Names of the feature columns; empty if there are none."""
    label_columns: list[str]
    """Names of the label columns if there are several; otherwise empty."""

    __repr__ = short_repr


def read_vertices(
    table: VertexTableSchema,
    files: TableFiles,
    *,
    named: bool,
    first_id: int,
    bad: RowProblems,
    notes: ImportNotes,
    scratch: Path,
) -> VertexTableData:
    """Read all vertices of a table; features are written to a file in `scratch`.

    `named` selects string ids; otherwise integer ids start at `first_id`. Errors are collected in `bad`, and
    notes about changed or missing values in `notes`. Raises DataError if a column is missing, or there were
    bad rows.
    """
    reader = _Reader(table, files, named, first_id, bad, notes, scratch)
    reader.read()
    bad.check()
    return reader.finish()


class _Reader:
    def __init__(
        self,
        table: VertexTableSchema,
        files: TableFiles,
        named: bool,
        first_id: int,
        bad: RowProblems,
        notes: ImportNotes,
        scratch: Path,
    ) -> None:
        if named and table.id is None:
            raise DataError(f"{files.names[0]}: ids: names needs an id column: set vertices.id in the schema")
        self._table, self._files, self._bad, self._notes = table, files, bad, notes
        if table.id is None:
            files.check_row_index(first_id)
            if (order := files.describe_order()) is not None:
                notes.add_line(order)
        self._first = first_id
        self._named = named
        self._names = NameIndex()
        self._class_names = NameIndex()
        self._count = 0
        columns = files.columns()
        taken = {*table.label, *table.masks, *filter(None, (table.id, table.split))}
        self._features = match_columns(table.features, columns, files.names[0], taken)
        self._label = match_columns(table.label, columns, files.names[0])
        self._rows = FeatureColumns(self._features, table.text.decimal, table.fill, "vertices.fill")
        self._file = scratch / "read-features.npy"
        self._writer: NpyWriter | None = None
        self._doubtful = SuspiciousColumns(0)
        self._ids: list[Array] = []
        self._labels: list[Array] = []
        self._splits: list[Array] = []

    @property
    def _kinds(self) -> dict[str, str]:
        table = self._table
        kinds = dict.fromkeys(self._features, "number")
        kinds |= dict.fromkeys((*self._label, *table.masks), "text")
        if table.split is not None:
            kinds[table.split] = "text"
        if table.id is not None:
            kinds[table.id] = "text"
        return kinds

    def read(self) -> None:
        kinds = self._kinds
        if not kinds:
            # Counting the rows needs at least one column.
            kinds = {self._files.columns()[0]: "any"}
        may_be_missing = [*self._label, *self._table.masks, *filter(None, (self._table.split,))]
        try:
            for piece in self._files.batches(kinds):
                self._bad.add_unreadable(piece)
                self._notes.add(self._files.names[0], piece, may_be_missing)
                if not piece.num_rows:
                    continue
                self._read_ids(piece)
                labels = self._read_labels(piece)
                self._labels.append(labels)
                self._read_split(piece, labels)
                if self._features:
                    rows = self._rows.rows(piece, self._bad)
                    if self._writer is None:
                        self._writer = NpyWriter(self._file, np.dtype(np.float32), rows.shape[1:])
                        self._doubtful = SuspiciousColumns(rows.shape[1])
                    if rows.shape[1:] == self._writer.row_shape:
                        self._writer.append(rows)
                        self._doubtful.add(rows, labels if labels.ndim == 1 and self._label else None)
                self._count += piece.num_rows
        finally:
            if self._writer is not None:
                self._writer.close()
        if not self._count and not self._bad.total:
            raise DataError(
                f"{self._files.names[0]}: the vertex table has no rows: pass a file with vertices"
            )

    def _read_ids(self, piece: TableBatch) -> None:
        column, bad = self._table.id, self._bad
        if column is None:
            return
        missing_remedy = (
            "Add an id to every vertex; text.nulls in the schema lists the values that count as missing"
        )
        rounded = report_rounded_ids(piece, column, bad)
        if self._named:
            ids, missing = read_strings(piece.columns[column])
            before = self._names.num
            numbers = self._names.add(ids, missing)
            newest = np.maximum.accumulate(np.append(before - 1, numbers))[:-1]
            bad.add(piece, column, missing, "is not a valid id", missing_remedy)
            is_repeated = ~missing & (numbers <= newest)
            bad.add(piece, column, is_repeated, "is the id of an earlier row", "List each vertex only once")
            return
        values, missing, wrong = read_whole_numbers(piece.columns[column], self._table.text.decimal)
        bad.add(piece, column, missing, "is not a valid id", missing_remedy)
        bad.add(piece, column, wrong & ~rounded, "is not an integer", NOT_INTEGER_REMEDY)
        self._ids.append(values)

    def _read_labels(self, piece: TableBatch) -> Array:
        kind, bad, decimal = self._table.label_kind, self._bad, self._table.text.decimal
        if not self._label:
            return np.full(piece.num_rows, -1, np.int8)
        if kind == "names":
            names, missing = read_strings(piece.columns[self._label[0]])
            numbers = self._class_names.add(names, missing)
            if self._class_names.num > MAX_CLASSES:
                raise DataError(
                    f"{piece.name}: column {self._label[0]!r} has more than {MAX_CLASSES:,} different "
                    "labels: set label_kind to numbers, or choose another column"
                )
            return numbers.astype(np.int32)
        if kind == "numbers":
            columns = []
            for column in self._label:
                real, _, wrong = read_real_numbers(piece.columns[column], decimal)
                wrong = wrong | (np.abs(real) > FLOAT32_MAX)
                bad.add(
                    piece,
                    column,
                    wrong,
                    "is not a valid float32 number",
                    "Use numbers, or leave the value empty",
                )
                with np.errstate(over="ignore"):
                    columns.append(real.astype(np.float32))
            return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        columns = []
        for column in self._label:
            values, missing, wrong = read_whole_numbers(piece.columns[column], decimal)
            unlabelled = ~missing & (values == -1)
            values = np.where(missing, -1, values)
            if kind == "flags":
                wrong = wrong | (values < -1) | (values > 1)
                bad.add(
                    piece,
                    column,
                    wrong,
                    "is neither 0 nor 1",
                    "Use 0 or 1, or leave the value empty if it is unknown",
                )
                columns.append(values.clip(-1, 1).astype(np.int8))
                remedy = "if -1 means no, write 0"
            else:
                wrong = wrong | (values < -1) | (values >= MAX_CLASSES)
                bad.add(piece, column, wrong, "is not a class number", _LABELS)
                columns.append(values.clip(-1, MAX_CLASSES).astype(np.int32))
                remedy = "if -1 is a class, set label_kind in a schema to names"
            self._notes.add_unlabelled(self._files.names[0], column, int(unlabelled.sum()), remedy)
        return columns[0] if kind == "classes" else np.stack(columns, axis=1)

    def _read_split(self, piece: TableBatch, labels: Array) -> None:
        table, bad = self._table, self._bad
        if table.split is not None:
            names, _ = read_strings(piece.columns[table.split])
            words = [SPLIT_WORDS.get((word or "").strip().lower(), -2) for word in names.to_pylist()]
            found = np.array(words, np.int8)
            bad.add(
                piece,
                table.split,
                found == -2,
                "is not train, val or test",
                "Use train, val or test, or leave the value empty for vertices in no split",
            )
            column = table.split
        elif table.masks:
            found = np.full(piece.num_rows, -1, np.int8)
            for part, column in enumerate(table.masks):
                flags = _flags(piece, column, bad)
                twice = flags & (found >= 0)
                bad.add(
                    piece,
                    column,
                    twice,
                    "assigns the vertex to a second split",
                    "Assign each vertex to only one split",
                )
                found[flags] = part
        else:
            return
        without = (found >= 0) & ~is_labelled(labels) if self._label else np.zeros(len(found), np.bool_)
        bad.add(
            piece,
            column,
            without,
            "assigns a vertex without a label to a split",
            "Add a label, or leave the vertex out of the split",
        )
        self._splits.append(found)

    def finish(self) -> VertexTableData:
        order = self._order()
        if self._named:
            self._merge_ids()
        classes_of_names = self._notes.merge_integers(f"{self._files.names[0]}: classes", self._class_names)
        self._notes.add_lookalikes("classes", self._class_names)
        if suspicious := self._doubtful.find_reasons():
            shown = format_reasons(
                {self._rows.names()[column]: reason for column, reason in suspicious.items()}
            )
            self._notes.add_line(
                f"{self._files.names[0]}: some features look like row numbers or copies of the label "
                f"({shown}): remove them from vertices.features if they are unknown for new vertices"
            )
        if self._rows.filled:
            self._notes.add_line(
                f"{self._files.names[0]}: {pluralize(self._rows.filled, 'missing feature')} filled with "
                f"{self._table.fill:g}"
            )
        for line in itertools.chain(self._rows.lines(self._files.names[0]), self._files.describe_comments()):
            self._notes.add_line(line)
        labels = np.concatenate(self._labels)
        self._labels.clear()
        classes: list[str] = []
        if self._table.label_kind == "names" and self._label:
            if classes_of_names is not None:
                labels = np.where(labels < 0, -1, classes_of_names[labels])
            classes, places = sort_names(self._class_names)
            self._notes.add_classes(classes)
            labels = np.where(labels < 0, -1, places[labels] if len(places) else -1)
        self._note_class_counts(labels)
        if self._table.label_kind in ("classes", "names") and labels.ndim == 1 and labels.dtype.kind == "i":
            labels = labels.astype(np.int16 if labels.max(initial=0) < 2**15 else np.int32)
        split = np.concatenate(self._splits) if self._splits else None
        if order is not None:
            labels, split = labels[order], None if split is None else split[order]
        masks = None if split is None else (split == 0, split == 1, split == 2)
        ids: VertexIds
        if self._named:
            ids = StringIds(self._names, grows=False, are_integers=self._names.read_integers() is not None)
        else:
            ids = IntegerIds(self._first, self._count, ".", self._count)
        columns = self._rows.names() if self._writer is not None else []
        label_columns = self._label if len(self._label) > 1 else []
        rows = self._feature_rows(order)
        return VertexTableData(self._count, labels, masks, rows, ids, classes, columns, label_columns)

    def _note_class_counts(self, labels: Array) -> None:
        """Add a note if a class below the highest one has no vertex, or if classes have so few vertices that
        the labels are probably numbers to predict.
        """
        if not self._label or self._table.label_kind not in ("classes", "names"):
            return
        labels = labels[labels >= 0]
        counts = np.bincount(labels)
        classes = np.count_nonzero(counts)
        if not counts.all():
            self._notes.add_line(
                f"{self._files.names[0]}, column {self._label[0]!r}: no vertex has class "
                f"{np.argmin(counts > 0)}, so training refuses these labels: number the classes from 0 to "
                f"{classes - 1}, or set label_kind in a schema to names (-1 is then a class)"
            )
        if len(labels) >= _MIN_LABELLED and 2 * classes > len(labels):
            self._notes.add_line(
                f"{self._files.names[0]}, column {self._label[0]!r}: {len(labels):,} labels belong to "
                f"{classes:,} classes: if they are regression targets, set label_kind in a schema to numbers"
            )

    def _order(self) -> Array | None:
        """Return the file rows in the order of their ids; None if the file has this order."""
        if self._named or not self._ids:
            return None
        ids = np.concatenate(self._ids)
        self._ids.clear()
        numbers = ids - self._first
        outside = (ids < self._first) | (numbers >= self._count)
        order = np.full(self._count, -1, np.int64)
        inside = np.flatnonzero(~outside)
        # The last row of each id is kept, so earlier rows with the same id are duplicates.
        order[numbers[inside]] = inside
        duplicates = inside[order[numbers[inside]] != inside]
        last = self._first + self._count - 1
        self._report_rows(
            np.flatnonzero(outside),
            ids,
            f"is not from {self._first:,} to {last:,}, the id range of {self._count:,} vertices",
            "Set first_id in the schema to the first id, or set ids to names if ids are not consecutive",
        )
        self._report_rows(duplicates, ids, "is also the id of a later row", "List each vertex only once")
        self._bad.check()
        return None if np.array_equal(order, np.arange(self._count)) else order

    def _merge_ids(self) -> None:
        """Spell ids like 3.0 as integers if all ids are integers, and report ids that are then equal."""
        numbers = self._notes.merge_integers(f"{self._files.names[0]}: ids", self._names)
        if numbers is None:
            return
        repeated = np.flatnonzero(numbers <= np.maximum.accumulate(np.append(-1, numbers))[:-1])
        ids = {row: self._names.name(numbers[row]) for row in repeated[:MAX_SHOWN].tolist()}
        self._report_rows(
            repeated, ids, "is the id of an earlier row, because 3.0 equals 3", "List each vertex only once"
        )
        self._bad.check()

    def _report_rows(self, rows: Array, ids: Array | dict[int, str], problem: str, remedy: str) -> None:
        shown = rows[:MAX_SHOWN]
        for row, place in zip(shown, self._files.locate_rows(shown), strict=True):
            self._bad.add_line(f"{place}, column {self._table.id!r}: {ids[row]} {problem}", remedy)
        self._bad.total += len(rows) - len(shown)

    def _feature_rows(self, order: Array | None) -> FeatureRows | None:
        if self._writer is None:
            return None
        values = map_npy(self._file)
        if order is None:
            return FeatureRows.from_array(values, mapped=True)
        step = rows_per_chunk(values.shape[1:], values.dtype)

        def blocks() -> Iterator[Array]:
            for start in range(0, len(order), step):
                yield values[order[start : start + step]]

        return FeatureRows.from_blocks((len(values), int(values.shape[1])), values.dtype, blocks)


TRUE_WORDS = ("1", "1.0", "true", "t", "yes", "y")
FALSE_WORDS = ("0", "0.0", "false", "f", "no", "n")


def _flags(piece: TableBatch, column: str, bad: RowProblems) -> Array:
    names, _ = read_strings(piece.columns[column])
    words: Sequence[str | None] = [
        None if word is None else word.strip().lower() for word in names.to_pylist()
    ]
    flags = np.array([word in TRUE_WORDS for word in words], np.bool_)
    wrong = ~flags & np.array([word not in (*FALSE_WORDS, "", None) for word in words], np.bool_)
    bad.add(
        piece, column, wrong, "is neither 0 nor 1", "Use 1 for the vertices of this split, and 0 for others"
    )
    return flags


class SplitColumns(NamedTuple):
    """Columns of a vertex table that give the split."""

    split: str | None
    masks: list[str]
    """Columns of the training, validation and test mask; empty if there are none."""
    taken: set[str]
    """All columns with the split, which are not features."""
    lines: list[str]
    """Lines about a guess by values."""


def find_split(sample: TableSample, columns: Collection[str]) -> SplitColumns:
    """Find the split in `columns` of a vertex table, by names or values.

    Raises DataError if columns contain different splits, or a column has the name of a split but other
    values: it is not a feature either.
    """
    found: dict[tuple[str, ...], tuple[int, ...]] = {}
    for masks in _find_masks(sample, columns):
        flags = [[_as_word(value) in TRUE_WORDS for value in sample.values(mask)] for mask in masks]
        found[masks] = tuple(row.index(True) if any(row) else -1 for row in zip(*flags, strict=True))
    words = [column for column in columns if _is_split(sample, column)]
    named = find_column(words, SPLIT_COLUMNS)
    for column in words if named is None else [named, *words]:
        parts = tuple(SPLIT_WORDS[_as_word(value)] for value in sample.values(column))
        if column == named or len({0, 1, 2} & set(parts)) > 1:
            found[(column,)] = parts
    if len(set(found.values())) > 1:
        shown = "; ".join(format_columns(list(names)) for names in found)
        raise DataError(
            f"{sample.name}: several columns contain different splits ({shown}): keep the columns of one "
            "split"
        )
    _check_split_columns(sample, is_known=bool(found))
    best = next(iter(found), ())
    lines = []
    if len(best) == 1 and best[0] != named:
        lines.append(
            f"{sample.name}: column {best[0]!r} is read as the split, because it contains only names of "
            "splits, such as train and test: if it is not the split, remove vertices.split from a schema"
        )
    taken = {name for names in found for name in names}
    is_mask = len(best) > 1
    return SplitColumns(
        best[0] if best and not is_mask else None, list(best) if is_mask else [], taken, lines
    )


def _find_masks(sample: TableSample, columns: Collection[str]) -> list[tuple[str, ...]]:
    """Return the three mask columns of each split; the names may end in the number of the split."""
    known = {name for names in MASK_COLUMNS for name in names}
    masks_by_number: dict[str, list[str]] = {}
    for column in columns:
        name, number = _split_number(column)
        if name in known:
            masks_by_number.setdefault(number, []).append(column)
    found = []
    for number, masks in masks_by_number.items():
        parts = [find_column(masks, [name + number for name in names]) for names in MASK_COLUMNS]
        complete = tuple(part for part in parts if part is not None)
        if len(complete) == len(parts) and (not number or all(_are_flags(sample, each) for each in complete)):
            found.append(complete)
    return found


def _split_number(column: str) -> tuple[str, str]:
    """Separate a normalized column name into a name and the number at its end."""
    name = normalize_name(column)
    stem = name.rstrip("0123456789")
    return stem, name[len(stem) :]


def _check_split_columns(sample: TableSample, *, is_known: bool) -> None:
    """Raise DataError if a column has the name of a split but other values.

    `is_known` is whether other columns give the split.
    """
    for column in sample.columns:
        if normalize_name(column) == "split":
            words = sorted({str(value) for value in sample.values(column) if value is not None})
            others = [word for word in words if word.strip().lower() not in SPLIT_WORDS]
            if others:
                raise DataError(
                    f"{sample.name}: column {column!r} contains {format_columns(others)}, but the splits "
                    "are train, val and test: use these values, or name the column differently"
                )
    names = {name for names in MASK_COLUMNS for name in names}
    numbered = {name for name in names if name.endswith("mask") or name.startswith("is")}
    flags = [
        column
        for column in sample.columns
        if normalize_name(column) in names or _split_number(column)[0] in numbered
        if _are_flags(sample, column)
    ]
    if flags and not is_known:
        raise DataError(
            f"{sample.name}: a split has three columns, train, val and test, but this table has only "
            f"{format_columns(flags)}: add the missing columns, use one column with these values, or name "
            "the columns differently"
        )


def _are_flags(sample: TableSample, column: str) -> bool:
    words = {str(value).strip().lower() for value in sample.values(column) if value is not None}
    return bool(words) and words <= {*TRUE_WORDS, *FALSE_WORDS}


def _is_split(sample: TableSample, column: str) -> bool:
    """Return whether a column has only words of splits, such as train and val."""
    values = sample.values(column)
    return values.count(None) < len(values) and all(_as_word(value) in SPLIT_WORDS for value in values)


def _as_word(value: Any) -> str:
    return "" if value is None else str(value).strip().lower()
