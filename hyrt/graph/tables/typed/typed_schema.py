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
    """One type of vertices."""

    ids: Literal["positions", "names"] = "positions"
    """What its ids are: `positions` are whole numbers that count from `first_id`, `names` are texts or any
    numbers, and are numbered: in the order of the table, or as relations name them first."""
    first_id: Annotated[int, Field(ge=-(2**62), lt=2**62), NoTruth] = 0
    """The first id, often 0 or 1; with `ids: positions`."""
    num_vertices: Annotated[int, Field(ge=1, lt=2**62), NoTruth] | None = None
    """The number of its vertices, with `ids: positions` and without a table; `null` if only ids that
    relations name are vertices."""
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
    """The type that its edges come from, its name, and the type they go to: `[author, writes, paper]`."""
    files: Columns
    """Which of the files that are given have its edges: names or patterns."""
    source: Column
    """The column of the vertex that an edge comes from."""
    target: Column
    """The column of the vertex that it goes to."""
    weight: Column | None = None
    """The column of an edge's weight, a number above 0; `null` for none. Where other relations have weights,
    those of this one are 1 then."""
    time: Column | None = None
    """The column of an edge's time: numbers, or dates such as 2024-05-31 or 2024-05-31 12:00:00. Of several
    edges from one vertex to another, the earliest time counts."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """What is done with edges of vertices that the table of their type does not have."""
    text: TextForm = TextForm()
    """How CSV files are written."""

    @model_validator(mode="after")
    def _fits(self) -> RelationTable:
        check_ends(self.source, self.target)
        return self


class TypedImportSchema(Section):
    """The tables of a typed graph."""

    target_type: str
    """The type whose vertices have labels and splits."""
    types: dict[str, VertexType]
    """The types of vertices by name."""
    relations: Annotated[list[RelationTable], Field(min_length=1)]
    """The relations."""
    reverse: bool = False
    """Whether each relation also gets one that goes the other way; within a type, both directions are one."""
    split: RandomSplit = RandomSplit()
    """The split of the vertices that have a label, where no column says it."""

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
