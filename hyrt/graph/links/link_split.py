"""Split of the links, and the edges that carry messages."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.known_edges import edges_joining, pair_codes
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.links.message_edges import with_edges
from hyrt.graph.links.relation_links import RelationLinks
from hyrt.graph.topology import Topology
from hyrt.quantities import one_line

_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out links and the negative pairs that they are compared with."""

    links: NDArray[Any]
    """[m, 2] sources and destinations."""
    negatives: NDArray[Any]
    """[n, 2] negative pairs."""

    __repr__ = one_line


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

    __repr__ = one_line

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
    known: Topology
    """All edges and all links of a split file, held-out ones too: no negative pair and no candidate is one of
    them. In a typed graph, those of the relation that is predicted."""
    trained: Topology
    """Edges and links that may be used in training: all except held-out ones."""
    ends: LinkEnds
    """The vertices that links are between."""
    relation: RelationLinks | None = None
    """The relation of a typed graph that is predicted."""
    notes: tuple[str, ...] = ()
    """What the user should know of the split, in lines."""

    __repr__ = one_line

    def edges_between(self, pairs: NDArray[Any]) -> list[tuple[NDArray[Any], int | None]]:
        """Return [n, 2] pairs as edges may join them: under any relation, in either direction."""
        if self.relation is None:
            return [(pairs, None), (pairs[:, ::-1], None)]
        return [*self.relation.edges_between(pairs)]

    def visible_edges(self, topology: Topology, *links: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark the edges, [E], that give links [n, 2] away: those that join their ends."""
        return edges_joining(topology, [each for pairs in links for each in self.edges_between(pairs)])

    @property
    def held_out(self) -> list[NDArray[Any]]:
        """The links of validation and test, [n, 2] each."""
        return [part.links for part in self.split.held_out.values()]


def message_topology(topology: Topology, links: LinkGraph) -> Topology:
    """Return the edges that carry messages: none joins the ends of a held-out link, or of a silent one."""
    silent = [links.split.train] if links.split.without_messages else []
    return with_edges(topology, ~links.visible_edges(topology, *links.held_out, *silent))


def check_held_out(name: str, topology: Topology, links: LinkGraph) -> None:
    """Check that no held-out link is visible in what is trained, under any relation in either direction.

    Raises
    ------
    DataError
        If an edge that carries messages joins the ends of a held-out link, or such a link is trained on.
    """
    visible = int(np.count_nonzero(links.visible_edges(topology, *links.held_out)))
    trained = _given_away(topology, links.split.train, links.held_out)
    for number, what in ((visible, "edges that carry messages"), (int(trained.sum()), "links to train on")):
        if number:
            raise DataError(
                f"{name}: {number:,} {what} join the ends of held-out links, so that evaluations would be of "
                "links that are known: open the graph with hyrt.load and let hyrt.train split its links"
            )


def without_held_out(
    topology: Topology, train: NDArray[Any], held_out: Mapping[str, HeldOut]
) -> tuple[NDArray[Any], int]:
    """Return the links to train on that no held-out link equals, nor reverses, and how many were left out."""
    given_away = _given_away(topology, train, [part.links for part in held_out.values()])
    return (train[~given_away], int(given_away.sum())) if given_away.any() else (train, 0)


def _given_away(topology: Topology, train: NDArray[Any], held_out: list[NDArray[Any]]) -> NDArray[np.bool_]:
    codes = [pair_codes(topology, pairs, undirected=True) for pairs in (train, *held_out)]
    found: NDArray[np.bool_] = np.isin(codes[0], np.concatenate([codes[0][:0], *codes[1:]]))
    return found
