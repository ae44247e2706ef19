"""Schemas of a table import: the CSV dialect and its inference, and the role of each column in the edge and
vertex tables.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hyrt.errors import join_names
from hyrt.formatting import pluralize
from hyrt.graph.hetero.check_types import find_name_problem
from hyrt.graph.metadata import ENDPOINT_COLUMN_NAMES, normalize_name
from hyrt.section import Index, NotBool, Section


def _as_tab(value: object) -> object:
    return "\t" if value in ("tab", "\\t") else value


def _plain(letter: str) -> str:
    if len(letter) > 1 or not letter.isascii() or letter in ("\n", "\r", "\0"):
        raise ValueError("use a single ASCII character other than a line break")
    return letter


def _without_none(value: object) -> object:
    if isinstance(value, list) and None in value:
        raise ValueError("write null and ~ in quotes: 'null'")
    return value


class CsvDialect(Section):
    """Form of a CSV file. It has no effect on Parquet files."""

    delimiter: Annotated[str, BeforeValidator(_as_tab), AfterValidator(_plain)] = ","
    """The character between two values, such as `;`; `tab` for a tab."""
    header: bool = True
    """Whether the first line has the column names. Otherwise columns are named by their numbers: 1, 2 and so
    on."""
    quote: Annotated[str, AfterValidator(_plain)] = '"'
    """The character around values that contain the delimiter; empty if there is none."""
    decimal: Literal[".", ","] = "."
    """The decimal point."""
    nulls: Annotated[list[str], BeforeValidator(_without_none)] = Field(
        default=["", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "\\N", "None"]
    )
    """The strings that represent a missing value."""
    encoding: Literal["utf-8", "cp1252", "latin-1"] = "utf-8"
    """The text encoding. Windows programs that do not write UTF-8 usually write `cp1252`."""

    @model_validator(mode="after")
    def _fits(self) -> CsvDialect:
        if self.delimiter in ("", self.quote):
            raise ValueError("set a delimiter, and a different quote character ('' for no quotes)")
        return self


def _column(value: Any) -> Any:
    """Validate a column name, which may look like a number."""
    if value is None:
        raise ValueError("use a string; a column named null must be written in quotes, as 'null'")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _columns(value: Any) -> Any:
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = [value]
    return [_column(name) for name in value] if isinstance(value, list) else value


Column = Annotated[str, BeforeValidator(_column)]
Columns = Annotated[list[str], BeforeValidator(_columns)]
Share = Annotated[float, Field(ge=0.0, le=1.0), NotBool]


class EdgeTableSchema(Section):
    """Table of edges."""

    files: Columns
    """The input files with edges: names, or patterns such as `edges-*.csv`. A folder counts as one name, and
    all tables in it belong together."""
    source: Column
    """The column of the source vertex."""
    target: Column
    """The column of the target vertex."""
    weight: Column | None = None
    """The column of the edge weight, a number above 0; `null` for none."""
    type: Column | None = None
    """The column of the edge type: integers from 0, or strings, which are numbered."""
    time: Column | None = None
    """The column of the edge time: numbers, or dates such as 2024-05-31 or 2024-05-31 12:00:00, which are
    stored in microseconds since 1970. If several edges connect the same two vertices, the earliest time is
    kept."""
    features: Columns = Field(default=[])
    """The columns of the edge features: names, or patterns such as `f*`, which match only columns without
    another role."""
    undirected: bool = False
    """Whether each row is an edge in both directions. Set it to false if the file already has both
    directions."""
    duplicates: Literal["merge", "first", "refuse"] = "merge"
    """How several edges from one vertex to another are treated: `merge` keeps one edge with the sum of the
    weights, `first` keeps the first edge, and `refuse` reports an error."""
    self_loops: Literal["keep", "drop", "refuse"] = "keep"
    """How edges from a vertex to itself are treated."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """How edges with a vertex that is missing in the vertex table are treated."""
    text: CsvDialect = CsvDialect()
    """The form of CSV files."""

    @model_validator(mode="after")
    def _fits(self) -> EdgeTableSchema:
        check_ends(self.source, self.target)
        return self


def check_ends(source: str, target: str) -> None:
    """Raise ValueError if both endpoints have the same column, which would make every edge a self loop."""
    if source == target:
        raise ValueError(f"source and target are both column {source!r}: choose two different columns")


class VertexTableSchema(Section):
    """Table of vertices."""

    files: Columns
    """The input files with vertices."""
    id: Column | None = None
    """The column of the id by which edges refer to a vertex; `null` if the rows are the vertices `first_id`,
    `first_id` + 1 and so on."""
    label: Columns = Field(default=[])
    """The column of the label. Several columns are several labels of 0 and 1, or several numbers."""
    label_kind: Literal["classes", "names", "flags", "numbers"] = "classes"
    """The kind of labels: `classes` are integers from 0, `names` are class names, which are sorted
    and numbered, `flags` are labels of 0 and 1 with one column per label, and `numbers` are regression
    targets. For vertices without a label, the value is -1 or empty."""
    features: Columns = Field(default=[])
    """The columns of the features: names, or patterns such as `f*`, which match only columns without another
    role. A column of a Parquet file may have lists of equal length. Without feature columns, the feature of a
    vertex is the logarithm of its degree."""
    fill: float | None = None
    """The number that replaces a missing feature; without it, a missing feature is an error."""
    split: Column | None = None
    """The column with the split of a vertex: `train`, `val` or `test`."""
    masks: Columns = Field(default=[])
    """An alternative to `split`: three columns of 0 and 1 (or true and false) for training, validation and
    test."""
    text: CsvDialect = CsvDialect()
    """The form of CSV files."""

    @model_validator(mode="after")
    def _fits(self) -> VertexTableSchema:
        if self.masks and len(self.masks) != 3:
            raise ValueError(
                f"masks lists {len(self.masks)} columns: list three, for training, validation and test"
            )
        if self.masks and self.split is not None:
            raise ValueError("both split and masks are set: remove one of them")
        if len(self.label) > 1 and self.label_kind in ("classes", "names"):
            raise ValueError("several label columns must be flags or numbers: set label_kind")
        return self


class RandomSplit(Section):
    """Random split of the labelled vertices, if no column defines a split."""

    train: Share = 0.6
    """Fraction of the labelled vertices for training."""
    val: Share = 0.2
    """Fraction for validation, which selects the best epoch."""
    test: Share = 0.2
    """Fraction for the test."""
    seed: Index = 0
    """Seed of the random split."""

    @model_validator(mode="after")
    def _fits(self) -> RandomSplit:
        if self.train + self.val + self.test > 1 + 1e-9:
            raise ValueError("train, val and test add up to more than 1: lower one of them")
        return self


class ImportSchema(Section):
    """Tables of a homogeneous graph."""

    ids: Literal["positions", "names"] = "positions"
    """The kind of vertex ids: `positions` are consecutive integers from `first_id`; `names` are strings
    or arbitrary numbers, which are numbered in the order of the vertex table, or else of the edges."""
    first_id: Annotated[int, Field(ge=-(2**62), lt=2**62), NotBool] = 0
    """The first id, often 0 or 1; with `ids: positions`."""
    num_vertices: Annotated[int, Field(ge=1, lt=2**62), NotBool] | None = None
    """The number of vertices, with `ids: positions` and without a vertex table; `null` if only ids that
    occur in edges are vertices."""
    edges: EdgeTableSchema
    vertices: VertexTableSchema | None = None
    split: RandomSplit = RandomSplit()

    @model_validator(mode="after")
    def _fits(self) -> ImportSchema:
        check_num_vertices(self.num_vertices, self.ids, has_table=self.vertices is not None)
        return self


def check_num_vertices(num_vertices: int | None, ids: str, *, has_table: bool) -> None:
    """Raise ValueError if the number of vertices is already defined by a table or by vertex names."""
    if num_vertices is not None and (has_table or ids == "names"):
        reason = (
            "the vertex table defines the vertices" if has_table else "the ids in edges define the vertices"
        )
        raise ValueError(f"num_vertices is {num_vertices}, but {reason}: remove num_vertices")


class VertexTypeSchema(Section):
    """Vertex type."""

    ids: Literal["positions", "names"] = "positions"
    """The kind of vertex ids: `positions` are consecutive integers from `first_id`; `names` are strings
    or arbitrary numbers, which are numbered in the order of the table, or else of the relations."""
    first_id: Annotated[int, Field(ge=-(2**62), lt=2**62), NotBool] = 0
    """The first id, often 0 or 1; with `ids: positions`."""
    num_vertices: Annotated[int, Field(ge=1, lt=2**62), NotBool] | None = None
    """The number of vertices, with `ids: positions` and without a table; `null` if only ids that occur in
    relations are vertices."""
    table: VertexTableSchema | None = None
    """The table of the vertices; `null` if only relations contain their ids. A type without features learns a
    row for each vertex."""

    @model_validator(mode="after")
    def _fits(self) -> VertexTypeSchema:
        check_num_vertices(self.num_vertices, self.ids, has_table=self.table is not None)
        return self


class RelationTableSchema(Section):
    """The table of the edges of one relation."""

    relation: list[str]
    """Source type, name and destination type of the relation: `[author, writes, paper]`."""
    files: Columns
    """The input files with edges of the relation: names or patterns."""
    source: Column
    """The column of the source vertex."""
    target: Column
    """The column of the target vertex."""
    weight: Column | None = None
    """The column of the edge weight, a number above 0; `null` for none. If only other relations have weights,
    the weights of this one are 1."""
    time: Column | None = None
    """The column of the edge time: numbers, or dates such as 2024-05-31 or 2024-05-31 12:00:00, which are
    stored in microseconds since 1970. If several edges connect the same two vertices, the earliest time is
    kept."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """How edges with a vertex that is missing in the table of its type are treated."""
    text: CsvDialect = CsvDialect()
    """The form of CSV files."""

    @model_validator(mode="after")
    def _fits(self) -> RelationTableSchema:
        check_ends(self.source, self.target)
        return self


class HeteroImportSchema(Section):
    """Tables of a heterogeneous graph."""

    target_type: str
    """The vertex type with labels and splits."""
    types: dict[str, VertexTypeSchema]
    """The vertex types by name."""
    relations: Annotated[list[RelationTableSchema], Field(min_length=1)]
    """The relations."""
    reverse: bool = False
    """Whether each relation also gets a reverse relation; a relation within one type becomes undirected
    instead."""
    split: RandomSplit = RandomSplit()
    """The random split of the labelled vertices, if no column defines a split."""

    @model_validator(mode="after")
    def _fits(self) -> HeteroImportSchema:
        known = join_names(self.types) if self.types else "none"
        for name in self.types:
            if reason := find_name_problem(name):
                raise ValueError(f"type name {name!r} {reason}")
        if self.target_type not in self.types:
            raise ValueError(
                f"target_type {self.target_type!r} is not one of the types ({known}): add it to types"
            )
        for table in self.relations:
            if len(table.relation) != 3:
                raise ValueError(
                    f"relation {table.relation} does not have three names: write it as [author, writes, "
                    "paper]"
                )
            for end in (table.relation[0], table.relation[2]):
                if end not in self.types:
                    raise ValueError(
                        f"relation {table.relation}: {end!r} is not one of the types ({known}): add it to "
                        "types"
                    )
        triples = [tuple(table.relation) for table in self.relations]
        for triple in triples:
            if triples.count(triple) > 1:
                raise ValueError(f"relation {list(triple)} is listed twice: list all its files in one entry")
        for name, kind in self.types.items():
            if name != self.target_type and kind.table is not None and kind.table.label:
                raise ValueError(
                    f"type {name!r} has labels, but target_type is {self.target_type!r}: remove these labels"
                )
        return self


_DELIMITERS = (",", ";", "\t", "|", " ")
_LINES = 100
_NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*")
_WHOLE = re.compile(r"[-+]?\d+")
_COMMA_NUMBER = re.compile(r"\s*[-+]?\d*,\d+\s*")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
_SEPARATOR_LINE = re.compile(rb"\"?sep=(.)\"?[,;\t]*\s*", re.IGNORECASE)
"""First line by which Excel finds the delimiter."""


def find_separator_line(line: bytes) -> str | None:
    """Return the delimiter if a line is `sep=;` of Excel, otherwise None."""
    found = _SEPARATOR_LINE.fullmatch(line.rstrip(b"\r"))
    return None if found is None or found[1] == b'"' else found[1].decode("ascii", errors="replace")


@dataclass(frozen=True, slots=True)
class FirstLines:
    """The first lines of a file, without comments and empty lines, and its inferred dialect."""

    dialect: CsvDialect
    rows: list[list[str]]
    """Values of each line, without surrounding spaces."""
    first_line: int
    """Line number of the first row."""

    def find_problem(self) -> str | None:
        """Return the reason if the first line is probably neither column names nor values, otherwise None."""
        if len(self.rows) < 2:
            return None
        first, second, *_ = self.rows
        shown = f"{self.dialect.delimiter.join(first)[:60]!r}"
        [(width, count)] = Counter(map(len, self.rows[1:])).most_common(1)
        if width > 1 and len(first) != width and count >= _MIN_EQUAL * len(self.rows[1:]):
            return (
                f"{shown} has {pluralize(len(first), 'value')}, but most lines have {width}: remove lines "
                "above the column names, and write one name per column, without row names or final delimiters"
            )
        if _has_known_names(second) and not _has_known_names(first):
            return f"{shown} is above the line with the column names: remove it"
        if (_has_known_names(first) or self._has_numbered_names()) and not self.dialect.header:
            return (
                f"{shown} may be column names or values: begin each column name with a letter, or set "
                "text.header in a schema"
            )
        if others := self._other_delimiters():
            return (
                f"{shown} may be separated by {self.dialect.delimiter!r} or by {others[0]!r}: set "
                "text.delimiter in a schema, or add a line with column names"
            )
        return None

    def has_names(self) -> bool:
        """Return whether the first line certainly has column names: only numbers are below one of them."""
        first, *others = [row for row in self.rows if len(row) == len(self.rows[0])]
        return self.dialect.header and any(
            name not in CsvDialect().nulls and all(map(_NUMBER.fullmatch, values))
            for name, *values in zip(first, *others, strict=True)
            if values
        )

    def _has_numbered_names(self) -> bool:
        """Return whether the first line is 0, 1, 2 and so on, as pandas names columns, and not an edge."""
        first = self.rows[0]
        if not are_numbered_names(first):
            return False
        below = {value for row in self.rows[1:] for value in row}
        has_fractions = any(_NUMBER.fullmatch(value) and not _WHOLE.fullmatch(value) for value in below)
        return len(first) > 2 or not first[0] or has_fractions or (len(first) == 2 and not below & {*first})

    def _other_delimiters(self) -> list[str]:
        """Return other delimiters that split all lines equally, and occur in text values."""
        texts = [value for row in self.rows for value in row if not _NUMBER.fullmatch(value)]
        lines = [self.dialect.delimiter.join(row) for row in self.rows]
        return [
            other
            for other in _DELIMITERS[:-1]
            if any(other in text for text in texts) and _regularity(lines, other)[0] == 1.0
        ]


def are_numbered_names(values: list[str]) -> bool:
    """Return whether values are 0, 1, 2 and so on, perhaps after the empty name of a row index."""
    numbers = values[1:] if values[0] == "" else values
    return bool(numbers) and numbers == list(map(str, range(len(numbers))))


_MIN_EQUAL = 0.8
"""Minimum fraction of lines with the same number of values in a table."""
_WORDS = {"u", "start", "head"}
"""Source columns whose names are also names of vertices."""


def _has_known_names(row: list[str]) -> bool:
    """Return whether a line has the usual names of the columns of edges, or of vertex ids."""
    names = set(map(normalize_name, row))
    return "id" in names or any(
        source not in _WORDS and {source, target} <= names for source, target in ENDPOINT_COLUMN_NAMES
    )


def read_first_lines(start: bytes) -> FirstLines:
    """Infer the CSV dialect from the first bytes of a file, decompressed.

    The delimiter is given by a line `sep=;`, or is the one that splits most lines into equal numbers of
    values. The first line is a header if it has neither numbers nor missing values, and if none of its names
    occurs below in a file without numbers. The decimal point is a comma if numbers contain one that is not a
    thousands separator.
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
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    delimiter = find_separator_line(numbered[0][1].encode()) if numbered else None
    if delimiter is not None:
        numbered.pop(0)
    while numbered and numbered[0][1].startswith(("#", "%")):
        numbered.pop(0)
    lines = [line for _, line in numbered[:_LINES]]
    delimiter = delimiter or _find_delimiter(lines)
    settings["delimiter"] = delimiter
    quote = _quote(lines, delimiter)
    settings["quote"] = quote
    rows = _rows(lines, delimiter, quote)
    defaults = CsvDialect()
    values = set(defaults.nulls) - {""}
    settings["header"] = bool(rows) and not any(
        _NUMBER.fullmatch(value) or value in values for value in rows[0]
    )
    # Ignore repetitions of the header, as in concatenated files.
    below = {value for row in rows[1:] if row != rows[0] for value in row}
    if below.intersection(rows[0] if rows else ()) - {""} and not any(map(_NUMBER.fullmatch, below)):
        # If names of the first line occur below, they are vertex names, not a header.
        settings["header"] = False
    if delimiter != "," and _has_decimal_commas([value for row in rows for value in row], delimiter):
        settings["decimal"] = ","
    changed = {key: value for key, value in settings.items() if value != getattr(defaults, key)}
    return FirstLines(CsvDialect(**changed), rows, numbered[0][0] if numbered else 1)


def _has_decimal_commas(values: list[str], delimiter: str) -> bool:
    """Return whether values are numbers with decimal commas, which 1,234 alone shows only between `;`."""
    commas = [value for value in values if _COMMA_NUMBER.fullmatch(value)]
    if not all(map(_THOUSANDS.fullmatch, commas)):
        return True
    has_points = any("." in value and _NUMBER.fullmatch(value) for value in values)
    return bool(commas) and delimiter == ";" and not has_points


def _find_delimiter(lines: list[str]) -> str:
    """Return the delimiter that splits most lines into equal numbers of values; a comma if none does."""
    regular = {each: _regularity(lines, each) for each in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda each: regular[each])
    if best == " ":
        # Texts such as `ann smith` may have equal numbers of words on all lines.
        other = max(_DELIMITERS[:-1], key=lambda each: regular[each])
        values = [value for row in _rows(lines, " ") for value in row if other in value]
        if regular[other][0] >= regular[best][0] and not all(map(_NUMBER.fullmatch, values)):
            best = other
    return best if regular[best] > (0, 0) else ","


def _are_mostly_utf8(data: bytes) -> bool:
    """Return whether most non-ASCII lines are valid UTF-8, in which case the others are damaged UTF-8."""
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
    """Return a single quote if it quotes most strings and no double quote occurs, or a double quote."""
    if any('"' in line for line in lines):
        return '"'
    values = [value.strip() for line in lines for value in line.split(delimiter)]
    texts = [value for value in values if value and not _NUMBER.fullmatch(value)]
    quoted = sum(len(value) > 1 and value[0] == value[-1] == "'" for value in texts)
    return "'" if 2 * quoted > len(texts) else '"'


def _regularity(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Return the fraction of lines with the most frequent number of values (above 1), and that number."""
    counts = Counter(map(len, _rows(lines, delimiter)))
    if not counts:
        return 0.0, 0
    width, often = counts.most_common(1)[0]
    return (often / len(lines), width) if width > 1 else (0.0, 0)
