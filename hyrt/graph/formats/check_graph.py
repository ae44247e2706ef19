"""Check of a graph that was built from arrays in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hyrt.checks import check_array, check_int, check_type
from hyrt.errors import ArgumentError
from hyrt.graph.formats.schema import check_dataset, from_graph, mask_suffixes
from hyrt.graph.graph import SPLITS, Graph, VertexTable
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.graph.topology import Topology

_REMEDY = "make graphs by hyrt.load, or by hyrt.Graph.from_arrays of numpy arrays"


def check_graph(graph: Graph) -> Graph:
    """Check that the arrays of a graph are consistent, and return the graph; dense features are not read.

    Raises DataError or ArgumentError with the first bad position.
    """
    if "was_checked" in graph.__dict__:
        return graph
    topology = check_type("topology of the graph", graph.topology, Topology, _REMEDY).checked
    table = check_type("vertices of the graph", graph.vertices, VertexTable, _REMEDY)
    check_type("name of the graph", graph.name, str, _REMEDY)
    check_type("labels of the graph", table.labels, np.ndarray, _REMEDY)
    num = topology.num_vertices
    for name, mask in check_type("masks of the graph", table.masks, dict, _REMEDY).items():
        check_type(f"mask {name!r} of the graph", mask, np.ndarray, _REMEDY)
    if isinstance(table.features, DenseFeatures):
        check_array("features", table.features.values, "f", (num, None), "a row for each vertex")
    elif isinstance(table.features, SparseFeatures):
        check_int("width of sparse features", table.features.width, 1, 2**31 - 1)
        for name in ("indptr", "columns", "values"):
            check_type(f"{name} of sparse features", getattr(table.features, name), np.ndarray, _REMEDY)
    elif not hasattr(table.features, "rows") or not hasattr(table.features, "width"):
        raise ArgumentError(f"features of the graph are {type(table.features).__name__}: {_REMEDY}")
    data = from_graph(graph)
    # Masks are optional in memory.
    masks = {
        key: np.zeros(num, np.bool_)
        for suffix in mask_suffixes(data.arrays)
        for split in SPLITS
        if (key := f"{split}_mask{suffix}") not in data.arrays
    }
    shape = graph.masks["train"].shape if "train" in graph.masks else (num,)
    masks = {key: np.zeros(shape, np.bool_) for key in masks}
    check_dataset(replace(data, arrays=data.arrays | masks), features="none", ordered=False)
    graph.__dict__["was_checked"] = True
    return graph
