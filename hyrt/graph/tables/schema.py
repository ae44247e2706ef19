"""Schemas of a table import: the CSV dialect, and the role of each column in the edge and vertex tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hyrt.errors import join_names
from hyrt.graph.hetero.check_types import find_name_problem
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
        default=["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
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
