"""Import schema: the files of each table and the role of each column."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hyrt.graph.tables.reading.text_form import TextForm
from hyrt.section import Index, NoTruth, Section


def _column(value: Any) -> Any:
    """Validate a column name, which may look like a number."""
    if value is None:
        raise ValueError("give text; a column that is called null is written in quotes: 'null'")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _columns(value: Any) -> Any:
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = [value]
    return [_column(name) for name in value] if isinstance(value, list) else value


Column = Annotated[str, BeforeValidator(_column)]
Columns = Annotated[list[str], BeforeValidator(_columns)]
Share = Annotated[float, Field(ge=0.0, le=1.0), NoTruth]


class EdgeTable(Section):
    """Table of edges."""

    files: Columns
    """Which of the files that are given have edges: names, or patterns such as `edges-*.csv`. A folder counts
    as one name, and all tables in it belong together."""
    source: Column
    """The column of the vertex that an edge comes from."""
    target: Column
    """The column of the vertex that it goes to."""
    weight: Column | None = None
    """The column of its weight, a number above 0; `null` for none."""
    type: Column | None = None
    """The column of its type: whole numbers from 0 on, or texts, which are numbered."""
    time: Column | None = None
    """The column of its time: numbers, or dates such as 2024-05-31 or 2024-05-31 12:00:00. Of several edges
    from one vertex to another, the earliest time counts."""
    features: Columns = Field(default=[])
    """The columns of its features: names, or patterns such as `f*` of columns that are nothing else."""
    undirected: bool = False
    """Whether each row is an edge in both directions. A file that has both directions already is not."""
    duplicates: Literal["merge", "first", "refuse"] = "merge"
    """What is done with several edges from one vertex to another: `merge` keeps one, whose weight is the sum,
    `first` keeps the one that comes first, and `refuse` takes them for errors."""
    self_loops: Literal["keep", "drop", "refuse"] = "keep"
    """What is done with edges from a vertex to itself."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """What is done with edges of vertices that the table of vertices does not have."""
    text: TextForm = TextForm()
    """How CSV files are written."""

    @model_validator(mode="after")
    def _fits(self) -> EdgeTable:
        check_ends(self.source, self.target)
        return self


def check_ends(source: str, target: str) -> None:
    """Refuse the same column for both endpoints, which would make every edge a self loop."""
    if source == target:
        raise ValueError(f"source and target are both column {source!r}: give the columns of both ends")


class VertexRows(Section):
    """Table of vertices."""

    files: Columns
    """Which of the files that are given have vertices."""
    id: Column | None = None
    """The column of the id that the edges name a vertex by; `null` where the first row is the vertex
    `first_id`, and so on."""
    label: Columns = Field(default=[])
    """The column of the label; several columns are several labels of 0 and 1, or several numbers."""
    label_kind: Literal["classes", "names", "flags", "numbers"] = "classes"
    """What labels are: `classes` are whole numbers from 0 on, `names` are names of classes, which are put in
    order and numbered, `flags` are labels of 0 and 1, one a column, and `numbers` are to be predicted as they
    are. Vertices without a label have -1 or nothing."""
    features: Columns = Field(default=[])
    """The columns of the features: names, or patterns such as `f*` of columns that are nothing else. A column
    of a Parquet file may have lists of one length. Without any, the feature of a vertex is the logarithm of
    its degree."""
    fill: float | None = None
    """The number that stands in the place of a missing feature; without one, it is an error."""
    split: Column | None = None
    """The column that says `train`, `val` or `test`."""
    masks: Columns = Field(default=[])
    """In place of `split`: three columns of 0 and 1 (or true and false) for training, validation and test."""
    text: TextForm = TextForm()
    """How CSV files are written."""

    @model_validator(mode="after")
    def _fits(self) -> VertexRows:
        if self.masks and len(self.masks) != 3:
            raise ValueError(f"give three columns, for training, validation and test, not {len(self.masks)}")
        if self.masks and self.split is not None:
            raise ValueError("give split or masks, not both")
        if len(self.label) > 1 and self.label_kind in ("classes", "names"):
            raise ValueError("several columns of labels are flags or numbers: give label_kind")
        return self


class RandomSplit(Section):
    """Random split of the labelled vertices, if no column defines a split."""

    train: Share = 0.6
    """Which part of them is trained on."""
    val: Share = 0.2
    """Which part chooses the best epoch."""
    test: Share = 0.2
    """Which part is tested on."""
    seed: Index = 0
    """The seed of the draw."""

    @model_validator(mode="after")
    def _fits(self) -> RandomSplit:
        if self.train + self.val + self.test > 1 + 1e-9:
            raise ValueError("train, val and test are more than 1 together")
        return self


class ImportSchema(Section):
    """Tables of a homogeneous graph."""

    ids: Literal["positions", "names"] = "positions"
    """What ids of vertices are: `positions` are whole numbers that count from `first_id`, `names` are texts
    or any numbers, and are numbered: in the order of the table of vertices, or as edges name them first."""
    first_id: Annotated[int, Field(ge=-(2**62), lt=2**62), NoTruth] = 0
    """The first id, often 0 or 1; with `ids: positions`."""
    num_vertices: Annotated[int, Field(ge=1, lt=2**62), NoTruth] | None = None
    """The number of vertices, with `ids: positions` and without a table of vertices; `null` if only ids that
    edges name are vertices."""
    edges: EdgeTable
    vertices: VertexRows | None = None
    split: RandomSplit = RandomSplit()

    @model_validator(mode="after")
    def _fits(self) -> ImportSchema:
        check_num_vertices(self.num_vertices, self.ids, has_table=self.vertices is not None)
        return self


def check_num_vertices(num_vertices: int | None, ids: str, *, has_table: bool) -> None:
    """Refuse a number of vertices if it is already defined by a table or by vertex names."""
    if num_vertices is not None and (has_table or ids == "names"):
        reason = (
            "the table of vertices has all of them" if has_table else "names are numbered as edges have them"
        )
        raise ValueError(f"num_vertices is {num_vertices}, but {reason}: omit it")
