"""Summary statistics of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import join_names
from hyrt.formatting import format_bytes, pluralize
from hyrt.graph.graph import SPLITS, Graph
from hyrt.graph.hetero.graph_types import GraphTypes
from hyrt.graph.kernels import count_relation_edges
from hyrt.graph.labels import describe_labels, is_labelled
from hyrt.graph.row_source import HeteroRows, QuantizedRowSource, RowSource, SparseFeatures
from hyrt.graph.topology import Topology


def summarize_types(
    types: GraphTypes,
    topology: Topology,
    rows: HeteroRows,
    rows_in_numbers: Callable[[RowSource], dict[str, Any]],
) -> dict[str, Any]:
    """Return statistics of vertex types and relations as JSON data with the keys `vertex_types`, `relations`
    and `target_type`.

    The degree in a relation is the in-degree of all vertices of its destination type: `mean`, `max`, and
    `none`, the number of vertices without edges. `rows_in_numbers` describes a feature table.
    """
    edges, longest, reached = (np.zeros(len(types.relations), np.int64) for _ in range(3))
    assert topology.edge_types is not None
    count_relation_edges(topology.indptr, topology.edge_types, edges, longest, reached)
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


def format_type_summary(facts: dict[str, Any], rows_in_words: Callable[[dict[str, Any]], str]) -> list[str]:
    """Format the result of `summarize_types` as lines for a terminal."""
    names = [each["name"] for each in facts["vertex_types"]]
    triples = [(each["source"], each["name"], each["destination"]) for each in facts["relations"]]
    wide = max(map(len, names))
    lines = [f"types      {len(names):,}, of which {facts['target_type']} has labels"]
    for each in facts["vertex_types"]:
        held = each["features"]
        description = (
            "no features (learned embeddings)"
            if held is None
            else f"{rows_in_words(held)} · {format_bytes(each['bytes'])}"
        )
        lines.append(f"  {each['name']:<{wide}}  {each['vertices']:,} · {description}")
    lines.append(f"relations  {len(triples):,}")
    wide = max((len(" ".join(triple)) for triple in triples), default=0)
    for triple, each in zip(triples, facts["relations"], strict=True):
        degree = each["degree"]
        lines.append(
            f"  {' '.join(triple):<{wide}}  {each['edges']:,} · degree mean {degree['mean']:.1f} · max "
            f"{degree['max']:,} · {degree['none']:,} without edges"
        )
    return lines


_EDGES = 1 << 24


def summarize_graph(graph: Graph) -> dict[str, Any]:
    """Return counts, degrees, features, classes, splits and memory of a graph as JSON data.

    `bytes` includes all arrays, in memory or mapped. For a heterogeneous graph, `features` is None, and the
    result of `summarize_types` is included.
    """
    degrees = graph.topology.in_degrees
    labels = graph.labels
    kind = graph.vertices.label_kind
    if kind == "classes":
        counts = np.bincount(labels[labels >= 0], minlength=graph.num_classes).tolist()
    else:
        counts = (labels == 1).sum(axis=0).tolist() if kind == "flags" else []
    features = graph.features
    type_summary: dict[str, Any] = {}
    rows: dict[str, Any] | None = None
    if isinstance(features, HeteroRows):
        type_summary = summarize_types(features.types, graph.topology, features, _rows)
    else:
        rows = _rows(features)
    return type_summary | {
        "name": graph.name,
        "vertices": graph.num_vertices,
        "edges": graph.num_edges,
        "edge_weights": graph.topology.edge_weights is not None,
        "edge_features": _width(graph.topology.edge_features),
        "edge_times": graph.topology.edge_times is not None,
        "degree": {
            "mean": float(degrees.mean()),
            "median": float(np.median(degrees)),
            "max": int(degrees.max()),
            "isolated": _num_isolated(graph.topology),
        },
        "features": rows,
        "labels": kind,
        "outputs": graph.num_outputs,
        "classes": graph.num_classes,
        "class_counts": counts,
        "unlabelled": int(np.count_nonzero(~is_labelled(_of_target(graph, labels)))),
        "reordered": graph.vertices.vertex_ids is not None,
        "alternative_splits": graph.num_splits,
        "splits": {name: np.atleast_1d(mask.sum(axis=0)).tolist() for name, mask in graph.masks.items()},
        "bytes": {"topology": graph.topology.nbytes, "features": features.nbytes},
    }


def _num_isolated(topology: Topology) -> int:
    """Count the vertices that have neither incoming nor outgoing edges."""
    alone = topology.in_degrees == 0
    if alone.any():
        # Process the edges in ranges, because mapped edges may exceed memory.
        for start in range(0, topology.num_edges, _EDGES):
            alone[topology.indices[start : start + _EDGES]] = False
    return int(alone.sum())


def _rows(features: RowSource) -> dict[str, Any]:
    dtype = features.row_format.name if isinstance(features, QuantizedRowSource) else "float32"
    if isinstance(features, SparseFeatures):
        return {"kind": "sparse", "width": features.width, "dtype": dtype, "entries": len(features.values)}
    return {"kind": "dense", "width": features.width, "dtype": dtype}


def _rows_in_words(rows: dict[str, Any]) -> str:
    entries = f", {rows['entries']:,} entries" if "entries" in rows else ""
    return f"{rows['kind']} {rows['width']:,} wide, {rows['dtype']}{entries}"


def _of_target(graph: Graph, labels: NDArray[Any]) -> NDArray[Any]:
    """Return the labels of the target type."""
    if graph.types is None:
        return labels
    low, high = graph.types.interval(graph.types.target)
    return labels[low:high]


def _width(rows: NDArray[Any] | None) -> int:
    return 0 if rows is None else int(rows.shape[1])


def _edge_values(facts: dict[str, Any]) -> str:
    width = facts["edge_features"]
    values = ["weights"] * facts["edge_weights"] + [pluralize(width, "feature")] * (width > 0)
    values += ["times"] * facts["edge_times"]
    return f", with {join_names(values, 'and')}" if values else ""


def format_summary(summary: dict[str, Any]) -> list[str]:
    """Format the result of `summarize_graph` as lines for a terminal."""
    degree, features, held = summary["degree"], summary["features"], summary["bytes"]
    counts = summary["class_counts"]
    shown = ", ".join(f"{count:,}" for count in counts[:20]) + (", ..." if len(counts) > 20 else "")
    description = describe_labels(summary["labels"], summary["outputs"])
    if summary["labels"] == "classes":
        description = f"{summary['classes']:,}: {shown}" if any(counts) else "none: no vertex has a label"
    elif counts:
        description += f"; vertices per label: {shown}"
    lines = [
        f"name       {summary['name']}",
        f"vertices   {summary['vertices']:,} · {degree['isolated']:,} isolated",
        f"edges      {summary['edges']:,} directed{_edge_values(summary)}",
        f"degree     mean {degree['mean']:.1f} · median {degree['median']:g} · max {degree['max']:,}",
        *([] if features is None else [f"features   {_rows_in_words(features)}"]),
        *(format_type_summary(summary, _rows_in_words) if features is None else []),
        f"{'classes' if summary['labels'] == 'classes' else 'labels':<11}{description}",
    ]
    if summary["unlabelled"]:
        lines.append(f"unlabelled {summary['unlabelled']:,}")
    for name in SPLITS:
        sizes = summary["splits"][name]
        more = f" ({len(sizes)} splits)" if len(sizes) > 1 else ""
        lines.append(f"{name:<11}{sizes[0]:,}{more}")
    further = [name for name in summary["splits"] if name not in SPLITS]
    if further:
        lines.append(f"further    {', '.join(further)}")
    if summary["reordered"]:
        lines.append("order      changed; the original numbers are in vertex_ids")
    lines.append(
        f"memory     topology {format_bytes(held['topology'])} · features {format_bytes(held['features'])}"
    )
    return lines
