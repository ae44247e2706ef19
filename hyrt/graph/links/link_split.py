"""Split of the links into training and held-out links, and the edges that carry messages."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError, DataError, join_names
from hyrt.formatting import short_repr
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.links.edges import encode_pairs, mark_edges, select_edges
from hyrt.graph.topology import Topology
from hyrt.runtime.rng import random_ints_below


@dataclass(frozen=True, slots=True)
class LinkEndpoints:
    """Vertex ranges of link sources and destinations: all vertices, or one vertex type each."""

    sources: tuple[int, int]
    """Source range: first vertex, and last vertex + 1."""
    destinations: tuple[int, int]
    """Destination range."""
    names: tuple[str, str] | None = None
    """Vertex types of sources and destinations, in a heterogeneous graph."""

    __repr__ = short_repr

    @staticmethod
    def all_vertices(num_vertices: int) -> LinkEndpoints:
        """Allow every vertex for both endpoints."""
        return LinkEndpoints((0, num_vertices), (0, num_vertices))

    @staticmethod
    def from_relation(types: GraphTypes, relation: Relation) -> LinkEndpoints:
        """Use the vertex types of a relation."""
        return LinkEndpoints(
            types.interval(relation.source),
            types.interval(relation.destination),
            (relation.source, relation.destination),
        )

    @property
    def num_pairs(self) -> int:
        """Number of pairs of two different vertices."""
        (low, high), (first, last) = self.sources, self.destinations
        both = max(0, min(high, last) - max(low, first))
        return (high - low) * (last - first) - both

    def all_pairs(self) -> NDArray[np.int64]:
        """Return [n, 2] all pairs, a vertex with itself included."""
        sources, destinations = np.arange(*self.sources), np.arange(*self.destinations)
        grid = np.meshgrid(sources, destinations, indexing="ij")
        return np.stack([each.ravel() for each in grid], axis=1)

    def sample(self, bits: NDArray[np.uint64], ends: NDArray[Any]) -> NDArray[np.int64]:
        """Map 64 uniform bits per endpoint to uniformly distributed vertices.

        Parameters
        ----------
        bits
            [...] uint64.
        ends
            [...] integers, 0 for a source and 1 for a destination; of a shape that `bits` can be put
            into.

        Returns
        -------
        [...] int64.
        """
        found = np.empty(bits.shape, np.int64)
        ends = np.broadcast_to(ends, bits.shape)
        for end, (low, high) in enumerate((self.sources, self.destinations)):
            chosen = ends == end
            found[chosen] = low + random_ints_below(bits[chosen], high - low)
        return found

    def find_invalid(self, pairs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return [n, 2] which endpoints of [n, 2] pairs are outside the allowed ranges."""
        low, high = np.array([self.sources, self.destinations]).T
        found: NDArray[np.bool_] = (pairs < low) | (pairs >= high)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class LinkRelation:
    """Relation of a heterogeneous graph whose edges are predicted."""

    number: int
    """The relation."""
    same_direction: tuple[int, ...]
    """The relations from the type of a link's source to that of its destination, with `number`."""
    reverse_direction: tuple[int, ...]
    """The relations that lead back; within one type, these are the same ones."""
    edges: Topology
    """The edges of the relation alone, between the vertices of all types."""
    positions: NDArray[np.int64]
    """[e] where these are among the edges of the graph."""
    ends: LinkEndpoints
    """The vertices that links are between."""

    __repr__ = short_repr

    def edges_between(self, pairs: NDArray[Any]) -> list[tuple[NDArray[Any], int]]:
        """Return [n, 2] pairs with each relation that may join them, reversed if the relation leads back.

        A relation that only repeats the links, or leads back, would give held-out ones away under any name,
        also if it lacks some of the edges or has more. So no relation is left out.
        """
        found = [(pairs, relation) for relation in self.same_direction]
        return found + [(pairs[:, ::-1], relation) for relation in self.reverse_direction]


def select_link_relation(graph: str, types: GraphTypes, topology: Topology, name: str | None) -> LinkRelation:
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
    meant = [number for number, each in enumerate(types.relations) if name is None or each.matches_name(name)]
    if len(meant) != 1:
        problem = (
            "train.objective=links predicts one relation of a typed graph: give links.relation="
            if name is None
            else f"links.relation={name} is {'several relations' if meant else 'not a relation'}: give "
        )
        known = join_names([each.full_name for each in types.relations], "or")
        raise ConfigError(f"{graph}: {problem}{known}")
    number = meant[0]
    relation = types.relations[number]
    edges, positions = _edges_of(topology, number)
    joined = [(each.source, each.destination) for each in types.relations]
    same_way, other_way = (
        tuple(other for other, ends in enumerate(joined) if ends == end_types)
        for end_types in ((relation.source, relation.destination), (relation.destination, relation.source))
    )
    ends = LinkEndpoints.from_relation(types, relation)
    return LinkRelation(number, same_way, other_way, edges, positions, ends)


def _edges_of(topology: Topology, number: int) -> tuple[Topology, NDArray[np.int64]]:
    """Return the edges of one relation, and their positions."""
    assert topology.edge_types is not None
    positions = np.flatnonzero(topology.edge_types == number)
    indptr = np.searchsorted(positions, topology.indptr).astype(np.int64)
    return Topology(indptr, topology.indices[positions]), positions


_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out links and the negative pairs that they are compared with."""

    links: NDArray[Any]
    """[m, 2] sources and destinations."""
    negatives: NDArray[Any]
    """[n, 2] negative pairs."""

    __repr__ = short_repr


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """Training, validation and test links of a graph."""

    train: NDArray[Any]
    """[M, 2] sources and destinations of the links that are trained on."""
    held_out: Mapping[str, HeldOut]
    """Links of `val` and `test`, if there are any."""
    train_negatives: NDArray[Any] | None = None
    """[n, 2] negative pairs for training; None to sample them."""
    without_messages: bool = False
    """Whether links that are trained on carry no messages."""
    notes: tuple[str, ...] = ()
    """Notes for the user about how the split was made."""

    __repr__ = short_repr

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of all pairs, independent of their dtype."""
        found = 0
        for part in self.arrays.values():
            for start in range(0, len(part), _PIECE):
                piece = np.ascontiguousarray(part[start : start + _PIECE], np.int64)
                found = zlib.crc32(piece.tobytes(), found)
        return found

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All pairs, by the keys of a file of links."""
        arrays = {"train": self.train}
        if self.train_negatives is not None:
            arrays["train_neg"] = self.train_negatives
        for name, part in self.held_out.items():
            arrays |= {name: part.links, f"{name}_neg": part.negatives}
        return arrays


@dataclass(frozen=True, eq=False)
class LinkGraph:
    """Edges and split of a graph for link prediction."""

    split: LinkSplit
    width: int
    """Columns of a vertex's embedding."""
    known_edges: Topology
    """All edges and all links of a split file, held-out ones too: no negative pair and no candidate is one of
    them. In a typed graph, those of the relation that is predicted."""
    train_edges: Topology
    """Edges and links that may be used in training: all except held-out ones."""
    ends: LinkEndpoints
    """The vertices that links are between."""
    relation: LinkRelation | None = None
    """The relation of a typed graph that is predicted."""
    notes: tuple[str, ...] = ()
    """What the user should know of the split, in lines."""

    __repr__ = short_repr

    def edges_between(self, pairs: NDArray[Any]) -> list[tuple[NDArray[Any], int | None]]:
        """Return [n, 2] pairs as edges may join them: under any relation, in either direction."""
        if self.relation is None:
            return [(pairs, None), (pairs[:, ::-1], None)]
        return [*self.relation.edges_between(pairs)]

    def visible_edges(self, topology: Topology, *links: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark the edges, [E], that give links [n, 2] away: those that join their ends."""
        return mark_edges(topology, [each for pairs in links for each in self.edges_between(pairs)])

    @property
    def held_out(self) -> list[NDArray[Any]]:
        """The links of validation and test, [n, 2] each."""
        return [part.links for part in self.split.held_out.values()]


def message_topology(topology: Topology, links: LinkGraph) -> Topology:
    """Return the edges that carry messages: none joins the ends of a held-out link, or of a silent one."""
    silent = [links.split.train] if links.split.without_messages else []
    return select_edges(topology, ~links.visible_edges(topology, *links.held_out, *silent))


def check_held_out(name: str, topology: Topology, links: LinkGraph) -> None:
    """Check that no held-out link is visible in what is trained, under any relation in either direction.

    Raises
    ------
    DataError
        If an edge that carries messages joins the ends of a held-out link, or such a link is trained on.
    """
    visible = int(np.count_nonzero(links.visible_edges(topology, *links.held_out)))
    trained = _mark_held_out(topology, links.split.train, links.held_out)
    for number, description in (
        (visible, "edges that carry messages"),
        (int(trained.sum()), "links to train on"),
    ):
        if number:
            raise DataError(
                f"{name}: {number:,} {description} join the ends of held-out links, so that evaluations "
                "would be of links that are known: open the graph with hyrt.load and let hyrt.train split "
                "its links"
            )


def drop_held_out(
    topology: Topology, train: NDArray[Any], held_out: Mapping[str, HeldOut]
) -> tuple[NDArray[Any], int]:
    """Return the links to train on that no held-out link equals, nor reverses, and how many were left out."""
    is_held_out = _mark_held_out(topology, train, [part.links for part in held_out.values()])
    return (train[~is_held_out], int(is_held_out.sum())) if is_held_out.any() else (train, 0)


def _mark_held_out(
    topology: Topology, train: NDArray[Any], held_out: list[NDArray[Any]]
) -> NDArray[np.bool_]:
    codes = [encode_pairs(topology, pairs, undirected=True) for pairs in (train, *held_out)]
    found: NDArray[np.bool_] = np.isin(codes[0], np.concatenate([codes[0][:0], *codes[1:]]))
    return found
