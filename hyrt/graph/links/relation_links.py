"""Relation whose links are predicted in a heterogeneous graph, and the relations that could reveal them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError, listed
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.graph.typed.graph_types import GraphTypes
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class RelationLinks:
    """Relation of a heterogeneous graph whose edges are predicted."""

    number: int
    """The relation."""
    same_way: tuple[int, ...]
    """The relations from the type of a link's source to that of its destination, with `number`."""
    other_way: tuple[int, ...]
    """The relations that lead back; within one type, these are the same ones."""
    edges: Topology
    """The edges of the relation alone, between the vertices of all types."""
    positions: NDArray[np.int64]
    """[e] where these are among the edges of the graph."""
    ends: LinkEnds
    """The vertices that links are between."""

    __repr__ = one_line

    def edges_between(self, pairs: NDArray[Any]) -> list[tuple[NDArray[Any], int]]:
        """Return [n, 2] pairs with each relation that may join them, reversed if the relation leads back.

        A relation that only repeats the links, or leads back, would give held-out ones away under any name,
        also if it lacks some of the edges or has more. So no relation is left out.
        """
        found = [(pairs, relation) for relation in self.same_way]
        return found + [(pairs[:, ::-1], relation) for relation in self.other_way]


def relation_links(graph: str, types: GraphTypes, topology: Topology, name: str | None) -> RelationLinks:
    """Select the relation to predict.

    Parameters
    ----------
    graph
        Its name, for messages.
    types, topology
        Its types, and the edges of all relations.
    name
        What the relation is called, whose edges are links; None where there is only one.

    Raises
    ------
    ConfigError
        If no relation, or more than one, is called so.
    """
    meant = [number for number, each in enumerate(types.relations) if name is None or each.is_called(name)]
    if len(meant) != 1:
        asked = (
            "train.objective=links predicts one relation of a typed graph: give links.relation="
            if name is None
            else f"links.relation={name} is {'several relations' if meant else 'not a relation'}: give "
        )
        known = listed([each.full_name for each in types.relations], "or")
        raise ConfigError(f"{graph}: {asked}{known}")
    number = meant[0]
    relation = types.relations[number]
    edges, positions = _edges_of(topology, number)
    joined = [(each.source, each.destination) for each in types.relations]
    same_way, other_way = (
        tuple(other for other, ends in enumerate(joined) if ends == wanted)
        for wanted in ((relation.source, relation.destination), (relation.destination, relation.source))
    )
    ends = LinkEnds.of_relation(types, relation)
    return RelationLinks(number, same_way, other_way, edges, positions, ends)


def _edges_of(topology: Topology, number: int) -> tuple[Topology, NDArray[np.int64]]:
    """Return the edges of one relation, and their positions."""
    assert topology.edge_types is not None
    positions = np.flatnonzero(topology.edge_types == number)
    indptr = np.searchsorted(positions, topology.indptr).astype(np.int64)
    return Topology(indptr, topology.indices[positions]), positions
