"""Metadata of an open heterogeneous graph, as a model needs it."""

from __future__ import annotations

from hyrt.checks import check_kind
from hyrt.graph.graph import Graph
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.nn.typed.typed_shape import TypedShape


def shape_of(graph: Graph) -> TypedShape | None:
    """Return the types and relations of a heterogeneous graph; None for a graph with a single type."""
    types = check_kind("graph", graph, Graph, "give a graph, from hyrt.load").types
    if types is None:
        return None
    rows = graph.features
    assert isinstance(rows, TypedRows)
    return TypedShape(
        types=tuple(types.vertex_types),
        counts=tuple(types.count(name) for name in types.vertex_types),
        widths=tuple(None if table is None else table.width for table in rows.tables),
        relations=tuple(
            (types.number(r.source), r.name, types.number(r.destination)) for r in types.relations
        ),
    )
