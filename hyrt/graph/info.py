"""Summary statistics of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import listed
from hyrt.graph.graph import Graph
from hyrt.graph.labels.label_kind import is_labelled, labels_in_words
from hyrt.graph.row_source import NarrowSource, RowSource, SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.graph.typed.typed_facts import type_facts, type_lines
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.graph.vertex_table import SPLITS
from hyrt.quantities import counted, size

_EDGES = 1 << 24


def describe(graph: Graph) -> dict[str, Any]:
    """Return counts, degrees, features, classes, splits and memory of a graph as JSON data.

    Returns
    -------
    Plain numbers, strings, lists and dicts. `bytes` counts the arrays, mapped or in memory. For a
    heterogeneous graph, `features` is None and the result of `type_facts` is included.
    """
    degrees = graph.topology.in_degrees
    labels = graph.labels
    kind = graph.vertices.label_kind
    if kind == "classes":
        counts = np.bincount(labels[labels >= 0], minlength=graph.num_classes).tolist()
    else:
        counts = (labels == 1).sum(axis=0).tolist() if kind == "flags" else []
    features = graph.features
    typed: dict[str, Any] = {}
    rows: dict[str, Any] | None = None
    if isinstance(features, TypedRows):
        typed = type_facts(features.types, graph.topology, features, _rows)
    else:
        rows = _rows(features)
    return typed | {
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
    """Count the vertices without incoming and outgoing edges."""
    alone = topology.in_degrees == 0
    if alone.any():
        # Process ranges of edges, because the edges of a dataset folder may exceed memory.
        for start in range(0, topology.num_edges, _EDGES):
            alone[topology.indices[start : start + _EDGES]] = False
    return int(alone.sum())


def _rows(features: RowSource) -> dict[str, Any]:
    dtype = features.row_format.name if isinstance(features, NarrowSource) else "float32"
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
    values = ["weights"] * facts["edge_weights"] + [counted(width, "feature")] * (width > 0)
    values += ["times"] * facts["edge_times"]
    return f", with {listed(values, 'and')}" if values else ""


def summary_lines(facts: dict[str, Any]) -> list[str]:
    """Format the result of `describe` as lines for a terminal."""
    degree, features, held = facts["degree"], facts["features"], facts["bytes"]
    counts = facts["class_counts"]
    shown = ", ".join(f"{count:,}" for count in counts[:20]) + (", ..." if len(counts) > 20 else "")
    told = labels_in_words(facts["labels"], facts["outputs"])
    if facts["labels"] == "classes":
        told = f"{facts['classes']:,}: {shown}" if any(counts) else "none: no vertex has a label"
    elif counts:
        told += f", which so many vertices have: {shown}"
    lines = [
        f"name       {facts['name']}",
        f"vertices   {facts['vertices']:,} · {degree['isolated']:,} isolated",
        f"edges      {facts['edges']:,} directed{_edge_values(facts)}",
        f"degree     mean {degree['mean']:.1f} · median {degree['median']:g} · max {degree['max']:,}",
        *([] if features is None else [f"features   {_rows_in_words(features)}"]),
        *(type_lines(facts, _rows_in_words) if features is None else []),
        f"{'classes' if facts['labels'] == 'classes' else 'labels':<11}{told}",
    ]
    if facts["unlabelled"]:
        lines.append(f"unlabelled {facts['unlabelled']:,}")
    for name in SPLITS:
        sizes = facts["splits"][name]
        more = f" ({len(sizes)} splits)" if len(sizes) > 1 else ""
        lines.append(f"{name:<11}{sizes[0]:,}{more}")
    further = [name for name in facts["splits"] if name not in SPLITS]
    if further:
        lines.append(f"further    {', '.join(further)}")
    if facts["reordered"]:
        lines.append("order      changed; vertex_ids has the original numbers")
    lines.append(f"memory     topology {size(held['topology'])} · features {size(held['features'])}")
    return lines
