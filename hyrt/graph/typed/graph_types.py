"""The vertex types and relations of a graph, and which vertices and edges belong to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, listed
from hyrt.graph.check import nearest
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of edges: what it goes from, what it is called, and what it goes to."""

    source: str
    """The type of the vertices that its edges come from."""
    name: str
    """Its own name. Relations between other types may have the same."""
    destination: str
    """The type of the vertices that its edges go to."""

    def __str__(self) -> str:
        return f"{self.source} {self.name} {self.destination}"

    @property
    def full_name(self) -> str:
        """What tells it from others of its name in settings: `author/writes/paper`."""
        return f"{self.source}/{self.name}/{self.destination}"

    def is_called(self, name: str) -> bool:
        """Whether a user means it by a name, its own or the full one."""
        return name in (self.name, self.full_name)


@dataclass(frozen=True, eq=False, slots=True)
class GraphTypes:
    """What the vertices and edges of a typed graph are.

    All vertices are numbered together, type after type. The edges of all relations are in one `Topology`,
    whose `edge_types` are numbers of relations, and whose rows are sorted by relation, then by source: so the
    edges of one relation into a vertex are consecutive.
    """

    vertex_types: tuple[str, ...]
    """The names of the T types of vertices."""
    starts: NDArray[np.int64]
    """[T+1] int64: the vertices of type t have the numbers from `starts[t]` to `starts[t + 1] - 1`."""
    relations: tuple[Relation, ...]
    """The R relations, in the order of their numbers."""
    target: str
    """The type whose vertices have labels and splits."""

    __repr__ = one_line

    @property
    def num_vertices(self) -> int:
        """V, the vertices of all types."""
        return int(self.starts[-1])

    def number(self, vertex_type: str) -> int:
        """The number of a type, 0..T-1.

        Raises
        ------
        DataError
            If there is no type of this name; names the nearest.
        """
        if vertex_type not in self.vertex_types:
            raise DataError(
                f"no vertex type {vertex_type!r}{nearest(vertex_type, self.vertex_types)} (types: "
                f"{listed(self.vertex_types)})"
            )
        return self.vertex_types.index(vertex_type)

    def relation_number(self, relation: Relation) -> int:
        """The number of a relation, 0..R-1.

        Raises
        ------
        DataError
            If there is no such relation; names the nearest.
        """
        if relation not in self.relations:
            names = [str(known) for known in self.relations]
            raise DataError(
                f"no relation {relation}{nearest(str(relation), names)} (relations: {listed(names)})"
            )
        return self.relations.index(relation)

    def interval(self, vertex_type: str) -> tuple[int, int]:
        """The first vertex of a type, and the one after its last."""
        number = self.number(vertex_type)
        return int(self.starts[number]), int(self.starts[number + 1])

    def count(self, vertex_type: str) -> int:
        """How many vertices a type has."""
        low, high = self.interval(vertex_type)
        return high - low

    def types_of(self, vertices: NDArray[Any]) -> NDArray[np.int64]:
        """[n] the number of the type of each of [n] vertices."""
        return np.searchsorted(self.starts, vertices, side="right") - 1

    @property
    def relation_sources(self) -> NDArray[np.int64]:
        """[R] int64, the number of the type that each relation's edges come from."""
        return np.array([self.number(relation.source) for relation in self.relations], np.int64)

    @property
    def relation_destinations(self) -> NDArray[np.int64]:
        """[R] int64, the number of the type that each relation's edges go to."""
        return np.array([self.number(relation.destination) for relation in self.relations], np.int64)

    def relations_into(self, vertex_type: str) -> tuple[int, ...]:
        """The numbers of the relations whose edges go to vertices of a type, rising."""
        self.number(vertex_type)
        return tuple(
            number for number, relation in enumerate(self.relations) if relation.destination == vertex_type
        )

    def relations_from(self, vertex_type: str) -> tuple[int, ...]:
        """The numbers of the relations whose edges come from vertices of a type, rising."""
        self.number(vertex_type)
        return tuple(
            number for number, relation in enumerate(self.relations) if relation.source == vertex_type
        )
