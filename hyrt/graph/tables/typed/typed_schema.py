"""Import schema of a heterogeneous graph."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hyrt.errors import listed
from hyrt.graph.tables.import_schema import (
    Column,
    Columns,
    RandomSplit,
    VertexRows,
    check_ends,
    check_num_vertices,
)
from hyrt.graph.tables.reading.text_form import TextForm
from hyrt.graph.typed.check_types import why_no_name
from hyrt.section import NoTruth, Section


class VertexType(Section):
    """Vertex type."""

    ids: Literal["positions", "names"] = "positions"
    """The kind of vertex ids: `positions` are consecutive whole numbers from `first_id` on; `names` are texts
    or arbitrary numbers, which are numbered in the order of the table, or else of the relations."""
    first_id: Annotated[int, Field(ge=-(2**62), lt=2**62), NoTruth] = 0
    """The first id, often 0 or 1; with `ids: positions`."""
    num_vertices: Annotated[int, Field(ge=1, lt=2**62), NoTruth] | None = None
    """The number of vertices, with `ids: positions` and without a table; `null` if only ids that occur in
    relations are vertices."""
    table: VertexRows | None = None
    """The table of its vertices; `null` where there is none, and relations alone name them. A type without
    features learns a row for each vertex."""

    @model_validator(mode="after")
    def _fits(self) -> VertexType:
        check_num_vertices(self.num_vertices, self.ids, has_table=self.table is not None)
        return self


class RelationTable(Section):
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
    """The column of the edge time: numbers, or dates such as 2024-05-31 or 2024-05-31 12:00:00. If several
    edges connect the same two vertices, the earliest time is kept."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """How edges with a vertex that is missing in the table of its type are treated."""
    text: TextForm = TextForm()
    """The form of CSV files."""

    @model_validator(mode="after")
    def _fits(self) -> RelationTable:
        check_ends(self.source, self.target)
        return self


class TypedImportSchema(Section):
    """Tables of a heterogeneous graph."""

    target_type: str
    """The vertex type with labels and splits."""
    types: dict[str, VertexType]
    """The vertex types by name."""
    relations: Annotated[list[RelationTable], Field(min_length=1)]
    """The relations."""
    reverse: bool = False
    """Whether each relation also gets a reverse relation; a relation within one type becomes undirected
    instead."""
    split: RandomSplit = RandomSplit()
    """The random split of the labelled vertices, if no column defines a split."""

    @model_validator(mode="after")
    def _fits(self) -> TypedImportSchema:
        known = listed(self.types) if self.types else "none"
        for name in self.types:
            if reason := why_no_name(name):
                raise ValueError(f"the name {name!r} of a type {reason}")
        if self.target_type not in self.types:
            raise ValueError(f"target_type {self.target_type!r} is not among the types: {known}")
        for table in self.relations:
            if len(table.relation) != 3:
                raise ValueError(
                    f"relation {table.relation}: give three words, such as [author, writes, paper]"
                )
            for end in (table.relation[0], table.relation[2]):
                if end not in self.types:
                    raise ValueError(f"relation {table.relation}: {end!r} is not among the types: {known}")
        triples = [tuple(table.relation) for table in self.relations]
        for triple in triples:
            if triples.count(triple) > 1:
                raise ValueError(f"relation {list(triple)} is there twice: name all of its files in one")
        for name, kind in self.types.items():
            if name != self.target_type and kind.table is not None and kind.table.label:
                raise ValueError(
                    f"type {name!r} has labels, but target_type is {self.target_type!r}: omit them"
                )
        return self
