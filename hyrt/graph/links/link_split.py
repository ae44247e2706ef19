"""Which links train, which are held out, and which edges carry messages."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.links.message_edges import without_links
from hyrt.graph.links.relation_links import RelationLinks
from hyrt.graph.topology import Topology
from hyrt.quantities import one_line

_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Links that are not trained on, and pairs that are none, to be told apart."""

    links: NDArray[Any]
    """[m, 2] sources and destinations."""
    negatives: NDArray[Any]
    """[n, 2] pairs that are no links."""

    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """The links of a graph by what they are for."""

    train: NDArray[Any]
    """[M, 2] sources and destinations of the links that are trained on."""
    held_out: Mapping[str, HeldOut]
    """`val` and `test`, those that have links."""
    train_negatives: NDArray[Any] | None = None
    """[n, 2] pairs that training takes for no links; None where they are drawn."""
    without_messages: bool = False
    """Whether links that are trained on carry no messages."""

    __repr__ = one_line

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of all pairs, whatever integers they are."""
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
    """What link prediction knows of the edges of a graph."""

    split: LinkSplit
    width: int
    """Columns of a vertex's embedding."""
    known: Topology
    """All edges, held-out ones too: what is ranked against a link is none of them. In a typed graph, those of
    the relation that is predicted."""
    trained: Topology
    """Those that may be known in training: all but held-out ones."""
    ends: LinkEnds
    """The vertices that links are between."""
    relation: RelationLinks | None = None
    """The relation of a typed graph that is predicted."""

    __repr__ = one_line


def message_topology(topology: Topology, links: LinkGraph) -> Topology:
    """The edges that carry messages: those of a graph without held-out ones, nor others that carry none."""
    silent = [links.split.train] if links.split.without_messages else []
    if links.relation is None:
        return without_links(links.trained, *silent)
    held_out = (part.links for part in links.split.held_out.values())
    return links.relation.message_edges(topology, *held_out, *silent)
