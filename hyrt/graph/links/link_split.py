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
    """Source and destination vertex types, in a heterogeneous graph."""

    __repr__ = short_repr

    @staticmethod
    def all_vertices(num_vertices: int) -> LinkEndpoints:
        """Return the endpoints of links between all vertices."""
        return LinkEndpoints((0, num_vertices), (0, num_vertices))

    @staticmethod
    def from_relation(types: GraphTypes, relation: Relation) -> LinkEndpoints:
        """Return the endpoints of a relation's links."""
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
        """Return all pairs [n, 2], including pairs of a vertex with itself."""
        sources, destinations = np.arange(*self.sources), np.arange(*self.destinations)
        grid = np.meshgrid(sources, destinations, indexing="ij")
        return np.stack([each.ravel() for each in grid], axis=1)

    def sample(self, bits: NDArray[np.uint64], ends: NDArray[Any]) -> NDArray[np.int64]:
        """Map 64 uniform bits per endpoint, [...] uint64, to uniformly distributed vertices, [...] int64.

        `ends`, 0 for a source and 1 for a destination, is broadcast to the shape of `bits`.
        """
        found = np.empty(bits.shape, np.int64)
        ends = np.broadcast_to(ends, bits.shape)
        for end, (low, high) in enumerate((self.sources, self.destinations)):
            chosen = ends == end
            found[chosen] = low + random_ints_below(bits[chosen], high - low)
        return found

    def find_invalid(self, pairs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return [n, 2] whether each endpoint of [n, 2] pairs is outside its range."""
        low, high = np.array([self.sources, self.destinations]).T
        found: NDArray[np.bool_] = (pairs < low) | (pairs >= high)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class LinkRelation:
    """Relation of a heterogeneous graph that is predicted."""

    number: int
    """Relation index."""
    same_direction: tuple[int, ...]
    """All relations with the same source and destination types, including `number`."""
    reverse_direction: tuple[int, ...]
    """All relations with source and destination types swapped; equal to `same_direction` within one type."""
    edges: Topology
    """Edges of this relation, over the vertices of all types."""
    positions: NDArray[np.int64]
    """[e] positions of these edges in the graph."""
    ends: LinkEndpoints
    """Vertex ranges of the links."""

    __repr__ = short_repr

    def edges_between(self, pairs: NDArray[Any]) -> list[tuple[NDArray[Any], int]]:
        """Return pairs [n, 2] with each relation that may connect them, reversed for the reverse direction.

        A relation that duplicates or reverses the links, even partly, would reveal held-out links, so all
        relations between the two types are included.
        """
        found = [(pairs, relation) for relation in self.same_direction]
        return found + [(pairs[:, ::-1], relation) for relation in self.reverse_direction]


def select_link_relation(graph: str, types: GraphTypes, topology: Topology, name: str | None) -> LinkRelation:
    """Return the relation called `name`, or the only one if it is None, for link prediction.

    Raises ConfigError if not exactly one relation matches.
    """
    meant = [number for number, each in enumerate(types.relations) if name is None or each.matches_name(name)]
    if len(meant) != 1:
        problem = (
            "train.objective=links predicts one relation of a heterogeneous graph: set links.relation="
            if name is None
            else (
                f"links.relation={name} matches {'several relations' if meant else 'no relation'}: set it to "
            )
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
    """Held-out links, and the negative pairs for comparison."""

    links: NDArray[Any]
    """[m, 2] sources and destinations."""
    negatives: NDArray[Any]
    """[n, 2] sources and destinations."""

    __repr__ = short_repr


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """Training, validation and test links of a graph."""

    train: NDArray[Any]
    """[M, 2] sources and destinations of the training links."""
    held_out: Mapping[str, HeldOut]
    """Links of `val` and `test`, if any."""
    train_negatives: NDArray[Any] | None = None
    """[n, 2] negative pairs for training; None to sample them."""
    without_messages: bool = False
    """Whether training links carry no messages."""
    notes: tuple[str, ...] = ()
    """Notes for the user about how the split was made."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user about the file of the split."""

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
        """All pairs, by the keys of a link file."""
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
    """Number of embedding columns per vertex."""
    known_edges: Topology
    """All edges (in a heterogeneous graph, of the predicted relation) and all links of a split file,
    including held-out links. They are never sampled as negative pairs or candidates."""
    train_edges: Topology
    """Edges and links for training: all except held-out ones."""
    ends: LinkEndpoints
    """Vertex ranges of the links."""
    relation: LinkRelation | None = None
    """Predicted relation of a heterogeneous graph."""
    notes: tuple[str, ...] = ()
    """Notes for the user about the split."""

    __repr__ = short_repr

    def edges_between(self, pairs: NDArray[Any]) -> list[tuple[NDArray[Any], int | None]]:
        """Return pairs [n, 2] with each relation that may connect them, in both directions."""
        if self.relation is None:
            return [(pairs, None), (pairs[:, ::-1], None)]
        return [*self.relation.edges_between(pairs)]

    def visible_edges(self, topology: Topology, *links: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark the edges [E] that reveal links [n, 2] because they connect the same vertices."""
        return mark_edges(topology, [each for pairs in links for each in self.edges_between(pairs)])

    @property
    def held_out(self) -> list[NDArray[Any]]:
        """Validation and test links, [n, 2] each."""
        return [part.links for part in self.split.held_out.values()]


def message_topology(topology: Topology, links: LinkGraph) -> Topology:
    """Return the edges that carry messages: all except edges between the endpoints of held-out links and,
    if the split is `without_messages`, of training links.
    """
    silent = [links.split.train] if links.split.without_messages else []
    found = select_edges(topology, ~links.visible_edges(topology, *links.held_out, *silent))
    return found.with_checksum_of(topology)


def check_held_out(name: str, topology: Topology, links: LinkGraph) -> None:
    """Raise DataError if a held-out link is trained on, or an edge that carries messages connects its
    endpoints.

    Any relation in either direction counts.
    """
    visible = int(np.count_nonzero(links.visible_edges(topology, *links.held_out)))
    trained = _mark_held_out(topology, links.split.train, links.held_out)
    for number, description in (
        (visible, "edges that carry messages"),
        (int(trained.sum()), "links to train on"),
    ):
        if number:
            raise DataError(
                f"{name}: {number:,} {description} connect the endpoints of held-out links, so evaluations "
                "would include known links: open the graph with hyrt.load and let hyrt.train split its "
                "links"
            )


def drop_held_out(
    topology: Topology, train: NDArray[Any], held_out: Mapping[str, HeldOut]
) -> tuple[NDArray[Any], int]:
    """Return the training links that neither equal nor reverse a held-out link, and the number of dropped
    links.
    """
    is_held_out = _mark_held_out(topology, train, [part.links for part in held_out.values()])
    return (train[~is_held_out], int(is_held_out.sum())) if is_held_out.any() else (train, 0)


def _mark_held_out(
    topology: Topology, train: NDArray[Any], held_out: list[NDArray[Any]]
) -> NDArray[np.bool_]:
    codes = [encode_pairs(topology, pairs, undirected=True) for pairs in (train, *held_out)]
    found: NDArray[np.bool_] = np.isin(codes[0], np.concatenate([codes[0][:0], *codes[1:]]))
    return found
