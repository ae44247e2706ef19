"""Summary statistics of vertex types and relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hyrt.graph.row_source import RowSource
from hyrt.graph.topology import Topology
from hyrt.graph.typed.graph_types import GraphTypes
from hyrt.graph.typed.typed_kernels import count_runs
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.quantities import size


def type_facts(
    types: GraphTypes,
    topology: Topology,
    rows: TypedRows,
    rows_in_numbers: Callable[[RowSource], dict[str, Any]],
) -> dict[str, Any]:
    """Return statistics per vertex type and relation as JSON data.

    Parameters
    ----------
    types, topology, rows
        Those of a typed graph.
    rows_in_numbers
        What to say of one table.

    Returns
    -------
    `vertex_types`, `relations` and `target_type`. The degree of a relation is that of the vertices that its
    edges go to: `mean` over all of that type, `max`, and how many have `none`.
    """
    edges, longest, reached = (np.zeros(len(types.relations), np.int64) for _ in range(3))
    assert topology.edge_types is not None
    count_runs(topology.indptr, topology.edge_types, edges, longest, reached)
    vertex_types = [
        {
            "name": name,
            "vertices": types.count(name),
            "features": None if table is None else rows_in_numbers(table),
            "bytes": 0 if table is None else table.nbytes,
        }
        for name, table in zip(types.vertex_types, rows.tables, strict=True)
    ]
    relations = [
        {
            "source": relation.source,
            "name": relation.name,
            "destination": relation.destination,
            "edges": int(edges[number]),
            "degree": {
                "mean": float(edges[number]) / max(1, types.count(relation.destination)),
                "max": int(longest[number]),
                "none": types.count(relation.destination) - int(reached[number]),
            },
        }
        for number, relation in enumerate(types.relations)
    ]
    return {"vertex_types": vertex_types, "relations": relations, "target_type": types.target}


def type_lines(facts: dict[str, Any], rows_in_words: Callable[[dict[str, Any]], str]) -> list[str]:
    """Format the result of `type_facts` as lines for a terminal."""
    names = [each["name"] for each in facts["vertex_types"]]
    triples = [(each["source"], each["name"], each["destination"]) for each in facts["relations"]]
    wide = max(map(len, names))
    lines = [f"types      {len(names):,}, of which {facts['target_type']} has labels"]
    for each in facts["vertex_types"]:
        held = each["features"]
        told = "no features: learned" if held is None else f"{rows_in_words(held)} · {size(each['bytes'])}"
        lines.append(f"  {each['name']:<{wide}}  {each['vertices']:,} · {told}")
    lines.append(f"relations  {len(triples):,}")
    wide = max((len(" ".join(triple)) for triple in triples), default=0)
    for triple, each in zip(triples, facts["relations"], strict=True):
        degree = each["degree"]
        lines.append(
            f"  {' '.join(triple):<{wide}}  {each['edges']:,} · degree mean {degree['mean']:.1f} · "
            f"max {degree['max']:,} · {degree['none']:,} without"
        )
    return lines
