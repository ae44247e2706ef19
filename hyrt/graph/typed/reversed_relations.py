"""Reverse relations: their names and edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.graph.typed.typed_csr import TypedEdges, TypedPiece

_PREFIX = "rev_"


def reverse_of(relation: Relation) -> Relation:
    """Return the reverse relation, named `rev_` plus the name."""
    return Relation(relation.destination, f"{_PREFIX}{relation.name}", relation.source)


def with_reversed(types: GraphTypes) -> GraphTypes:
    """Return types with reverse relations.

    A relation between two types gets a reverse relation named `rev_` plus its name, unless it exists. A
    relation within one type is its own reverse: its reversed edges are added to it.
    """
    known = set(types.relations)
    back = [
        reverse_of(each)
        for each in types.relations
        if each.source != each.destination and reverse_of(each) not in known and not _goes_back(each, known)
    ]
    return replace(types, relations=(*types.relations, *back))


def _goes_back(relation: Relation, known: set[Relation]) -> bool:
    """Return whether a relation is the reverse of a known relation."""
    forward = Relation(relation.destination, relation.name.removeprefix(_PREFIX), relation.source)
    return relation.name.startswith(_PREFIX) and forward in known


def reversed_edges(edges: TypedEdges, types: GraphTypes, wider: GraphTypes) -> TypedEdges:
    """Add the reverse of each edge, with its weight, to a stream of edges; self loops are not duplicated.

    Parameters
    ----------
    edges
        The edges as they are.
    types, wider
        Their relations, and those `with_reversed`.
    """
    back = reversed_numbers(types, wider)

    def stream() -> Iterator[TypedPiece]:
        for piece in edges():
            yield piece
            other = back[piece.relation]
            if other is None:
                continue
            turned = TypedPiece(other, piece.targets, piece.sources, piece.weights)
            yield _without_loops(turned) if other == piece.relation else turned

    return stream


def reversed_numbers(types: GraphTypes, wider: GraphTypes) -> list[int | None]:
    """Return the number of the relation that takes each relation's reversed edges, or None if none does.

    Parameters
    ----------
    types, wider
        The relations, and those `with_reversed`.
    """
    places = {relation: number for number, relation in enumerate(wider.relations)}
    added = set(wider.relations[len(types.relations) :])
    return [
        number
        if relation.source == relation.destination
        else places[reverse_of(relation)]
        if reverse_of(relation) in added
        else None
        for number, relation in enumerate(types.relations)
    ]


def _without_loops(piece: TypedPiece) -> TypedPiece:
    apart = piece.sources != piece.targets
    if apart.all():
        return piece
    weights = None if piece.weights is None else piece.weights[apart]
    return TypedPiece(piece.relation, piece.sources[apart], piece.targets[apart], weights)
