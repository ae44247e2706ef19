"""The edges of one relation of a typed graph, whose links are predicted, and of the one that goes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError, listed
from hyrt.graph.links.known_edges import edges_of_pairs
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.links.message_edges import with_edges
from hyrt.graph.topology import Topology
from hyrt.graph.typed.graph_types import GraphTypes
from hyrt.graph.typed.reversed_relations import reverse_of
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class RelationLinks:
    """What is predicted of a typed graph: the edges of a relation."""

    number: int
    """The relation."""
    back: int | None
    """The relation whose edges say the same the other way round, which may be itself; None where none
    does."""
    edges: Topology
    """The edges of the relation alone, between the vertices of all types."""
    positions: NDArray[np.int64]
    """[e] where these are among the edges of the graph."""
    ends: LinkEnds
    """The vertices that links are between."""

    __repr__ = one_line

    def message_edges(self, topology: Topology, *links: NDArray[Any]) -> Topology:
        """The edges of all relations, without those of links and without the edges that say the same.

        Parameters
        ----------
        topology
            The edges of all relations.
        links
            [n, 2] sources and destinations.
        """
        kept = np.ones(topology.num_edges, np.bool_)
        for pairs, relation in self.both_ways(*links):
            firsts, counts = edges_of_pairs(topology, pairs, relation)
            kept[firsts[counts > 0]] = False
        return with_edges(topology, kept)

    def both_ways(self, *links: NDArray[Any]) -> list[tuple[NDArray[Any], int]]:
        """Links as pairs of the relation, and the other way round as pairs of the one that goes back."""
        found = [(pairs, self.number) for pairs in links]
        if self.back is not None:
            found += [(pairs[:, ::-1], self.back) for pairs in links]
        return found

    def reverse_edges(self, links: NDArray[Any]) -> list[tuple[NDArray[Any], int]]:
        """Links the other way round, as pairs of the relation that goes back, or of the same one where it is
        between vertices of one type.
        """
        names = self.ends.names
        within = self.number if names is not None and names[0] == names[1] else None
        relation = within if self.back is None else self.back
        return [] if relation is None else [(links[:, ::-1], relation)]


def relation_links(graph: str, types: GraphTypes, topology: Topology, name: str | None) -> RelationLinks:
    """The links of a typed graph.

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
    edges, positions = _edges_of(topology, number)
    back = _back(types, topology, number, edges)
    ends = LinkEnds.of_relation(types, types.relations[number])
    return RelationLinks(number, back, edges, positions, ends)


def _edges_of(topology: Topology, number: int) -> tuple[Topology, NDArray[np.int64]]:
    """The edges of one relation, and where they are."""
    assert topology.edge_types is not None
    positions = np.flatnonzero(topology.edge_types == number)
    indptr = np.searchsorted(positions, topology.indptr).astype(np.int64)
    return Topology(indptr, topology.indices[positions]), positions


def _back(types: GraphTypes, topology: Topology, number: int, edges: Topology) -> int | None:
    """The relation that goes back: itself if it goes both ways, one that is named so, or has such edges."""
    relation = types.relations[number]
    if relation.source == relation.destination and edges.is_symmetric:
        return number
    others = [
        other
        for other, each in enumerate(types.relations)
        if other != number and (each.source, each.destination) == (relation.destination, relation.source)
    ]
    for other in others:
        each = types.relations[other]
        if each == reverse_of(relation) or relation == reverse_of(each):
            return other
    for other in others:
        found = _edges_of(topology, other)[0]
        if found.num_edges == edges.num_edges and _are_equal(found, edges.transposed):
            return other
    return None


def _are_equal(first: Topology, second: Topology) -> bool:
    return np.array_equal(first.indptr, second.indptr) and np.array_equal(first.indices, second.indices)
