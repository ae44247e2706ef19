"""Vertex types and relations of a heterogeneous graph, and their keys in datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, join_names
from hyrt.formatting import short_repr
from hyrt.graph.check import suggest_name


@dataclass(frozen=True, slots=True)
class Relation:
    """Relation (edge type) between two vertex types."""

    source: str
    name: str
    """Name of the relation, which relations between other types may share."""
    destination: str

    def __str__(self) -> str:
        return f"{self.source} {self.name} {self.destination}"

    @property
    def full_name(self) -> str:
        """Unique name in settings, such as `author/writes/paper`."""
        return f"{self.source}/{self.name}/{self.destination}"

    def matches_name(self, name: str) -> bool:
        """Return whether a name is the short or full name of the relation."""
        return name in (self.name, self.full_name)


@dataclass(frozen=True, eq=False, slots=True)
class GraphTypes:
    """Vertex types and relations of a heterogeneous graph.

    Vertices are numbered type by type. All edges are in one `Topology`, whose `edge_types` are relation
    indices. Its rows are sorted by relation, then by source, so the edges of one relation into a vertex are
    consecutive.
    """

    vertex_types: tuple[str, ...]
    """Names of the T vertex types."""
    starts: NDArray[np.int64]
    """First vertex of each type, [T+1] int64: type t has the vertices `starts[t]` to `starts[t + 1] - 1`."""
    relations: tuple[Relation, ...]
    """The R relations in the order of their indices."""
    target: str
    """Vertex type that has labels and splits."""

    __repr__ = short_repr

    @property
    def num_vertices(self) -> int:
        return int(self.starts[-1])

    def type_index(self, vertex_type: str) -> int:
        """Return the index of a vertex type, 0..T-1. For an unknown type, raises DataError with a similar
        name.
        """
        if vertex_type not in self.vertex_types:
            raise DataError(
                f"there is no vertex type {vertex_type!r}{suggest_name(vertex_type, self.vertex_types)} "
                f"(types: {join_names(self.vertex_types)})"
            )
        return self.vertex_types.index(vertex_type)

    def relation_index(self, relation: Relation) -> int:
        """Return the index of a relation, 0..R-1. For an unknown relation, raises DataError with a similar
        name.
        """
        if relation not in self.relations:
            names = [str(known) for known in self.relations]
            raise DataError(
                f"there is no relation {relation}{suggest_name(str(relation), names)} (relations: "
                f"{join_names(names)})"
            )
        return self.relations.index(relation)

    def interval(self, vertex_type: str) -> tuple[int, int]:
        """Return the range of a type's vertices: first index, and last index + 1."""
        number = self.type_index(vertex_type)
        return int(self.starts[number]), int(self.starts[number + 1])

    def count(self, vertex_type: str) -> int:
        low, high = self.interval(vertex_type)
        return high - low

    def vertex_type_indices(self, vertices: NDArray[Any]) -> NDArray[np.int64]:
        """Return the type index [n] of each of the vertices [n]."""
        return np.searchsorted(self.starts, vertices, side="right") - 1

    @property
    def relation_sources(self) -> NDArray[np.int64]:
        """Index of each relation's source type, [R] int64."""
        return np.array([self.type_index(relation.source) for relation in self.relations], np.int64)

    @property
    def relation_destinations(self) -> NDArray[np.int64]:
        """Index of each relation's destination type, [R] int64."""
        return np.array([self.type_index(relation.destination) for relation in self.relations], np.int64)

    def relations_into(self, vertex_type: str) -> tuple[int, ...]:
        """Return the indices of the relations into a vertex type, in ascending order."""
        self.type_index(vertex_type)
        return tuple(
            number for number, relation in enumerate(self.relations) if relation.destination == vertex_type
        )

    def relations_from(self, vertex_type: str) -> tuple[int, ...]:
        """Return the indices of the relations from a vertex type, in ascending order."""
        self.type_index(vertex_type)
        return tuple(
            number for number, relation in enumerate(self.relations) if relation.source == vertex_type
        )


Array = NDArray[Any]

VERTEX_TYPES = "vertex_types"
TYPE_STARTS = "type_starts"
RELATIONS = "relations"
TARGET_TYPE = "target_type"
TYPE_KEYS = (VERTEX_TYPES, TYPE_STARTS, RELATIONS, TARGET_TYPE)
TEXT_KEYS = (VERTEX_TYPES, RELATIONS, TARGET_TYPE)
"""Keys of string arrays, which have a fixed-width dtype like `numpy.array(["paper", "author"])`."""


def type_key(base: str, vertex_type: str) -> str:
    """Return the key for a type, such as `features:paper`."""
    return f"{base}:{vertex_type}"


def strip_type(key: str) -> str:
    """Return a key without its type, such as `features` for `features:paper`."""
    return key.partition(":")[0]


def get_type(key: str) -> str:
    """Return the type in a key; empty if there is none."""
    return key.partition(":")[2]


def types_to_arrays(types: GraphTypes) -> dict[str, Array]:
    """Convert types to arrays by key."""
    relations = [(each.source, each.name, each.destination) for each in types.relations]
    return {
        VERTEX_TYPES: np.array(types.vertex_types),
        TYPE_STARTS: types.starts,
        RELATIONS: np.array(relations) if relations else np.empty((0, 3), "<U1"),
        TARGET_TYPE: np.array([types.target]),
    }


def types_from_arrays(arrays: Mapping[str, Array]) -> GraphTypes | None:
    """Return the types in checked arrays by key; None in a homogeneous dataset."""
    if VERTEX_TYPES not in arrays:
        return None
    return GraphTypes(
        tuple(arrays[VERTEX_TYPES].tolist()),
        arrays[TYPE_STARTS].astype(np.int64, copy=False),
        tuple(Relation(*names) for names in arrays[RELATIONS].tolist()),
        arrays[TARGET_TYPE].tolist()[0],
    )
