"""PyG `Data` and `HeteroData` objects, read by their attributes: torch_geometric itself is not imported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, listed
from hyrt.graph.check import nearest, reject
from hyrt.graph.formats.objects.edge_pairs import edges_in_rows, rows_of_pairs
from hyrt.graph.formats.objects.hetero_data import read_hetero_data
from hyrt.graph.formats.schema import (
    EDGE_FEATURES,
    EDGE_TIME,
    EDGE_TYPE,
    EDGE_WEIGHT,
    Dataset,
    FeatureRows,
    names_edges,
)
from hyrt.graph.labels.foreign_labels import as_labels, as_targets
from hyrt.graph.links.edge_times import NAMES, TimedEdges, as_times, times_in_rows
from hyrt.graph.topology import Topology
from hyrt.graph.vertex_table import SPLITS

Array = NDArray[Any]

_ATTRIBUTES = "edge_attr"
_OF_EDGES = (EDGE_TYPE, EDGE_WEIGHT, _ATTRIBUTES)


def read_pyg(data: Any) -> Dataset:
    """Make a dataset of a PyG `Data` with x, edge_index, y and the three masks, or of a `HeteroData`.

    What is read of a `HeteroData`, `read_hetero_data` says. Of a `Data`:

    Edges run from row 0 to row 1 of `edge_index` and stay directed; duplicates and self loops are left out
    (models that want self loops add their own). Labels are classes, labels of 0 and 1 or numbers, as
    `as_targets` reads them; NaN means no label. Features that are not float16
    become float32. `edge_type`, where there is one, is a type for each edge, `edge_weight` a weight, and
    `edge_attr` its features, or its weight where it has one column and there is no `edge_weight`; with any of
    them, no two edges may be equal. `edge_time`, or `time` or `timestamp` if it has a number for each edge
    and not for each vertex, is the time of each edge; of equal edges, the earliest counts.

    Raises
    ------
    DataError
        Names the missing or malformed attribute, or what would be dropped: other values of edges.
    """
    kind = type(data).__name__
    name = f"PyG {kind}"
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        return read_hetero_data(data)
    if not hasattr(data, "x") and not hasattr(data, "edge_index"):
        raise DataError(
            f"{data!r:.80} is not a graph: give the path of a .npz file or a folder, a name such as "
            "synthetic:tiny, a PyG Data, or a DGL graph"
        )
    held = data.to_dict() if hasattr(data, "to_dict") else getattr(data, "__dict__", {})
    for key, value in held.items():
        if value is not None and key not in ("edge_index", *_OF_EDGES, EDGE_TIME) and names_edges(key):
            raise DataError(
                f"{name}: attribute '{key}': hyrt reads {listed(_OF_EDGES, 'and')} of edges, and would leave "
                f"this out: rename it, or to train without it, `del data.{key}`"
            )
    arrays = {
        key: _array(data, key, name) for key in ("x", "edge_index", "y", *(f"{s}_mask" for s in SPLITS))
    }
    of_edges = {key: _array(data, key, name) for key in _OF_EDGES if held.get(key) is not None}
    time = _time_of_edges(held, arrays)
    for key, value in held.items():
        if key not in (*arrays, *_OF_EDGES, time) and getattr(value, "ndim", None):
            _warn(f"{name}: attribute '{key}' is not read{nearest(key, arrays, cutoff=0.75)}")
    edges, x, y = arrays["edge_index"], arrays["x"], arrays["y"]
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise reject(
            name, "edge_index", f"{edges.dtype.name} of shape {list(edges.shape)}, expected integers [2, E]"
        )
    if x.ndim != 2:
        raise reject(name, "x", f"shape {list(x.shape)}, expected [V, F]")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise reject(name, "y", f"shape {list(y.shape)}, expected [V] or [V, K]")
    indptr, indices = rows_of_pairs(edges[0], edges[1], len(x), name)
    left_out = edges.shape[1] - int(indptr[-1])
    if left_out:
        _warn(
            f"{name}: {left_out:,} of {edges.shape[1]:,} edges are left out: self loops, or equal to others"
        )
    dataset: dict[str, Array] = {
        "indptr": indptr,
        "indices": indices,
        "labels": as_targets(y, name, "y"),
    }
    if of_edges:
        dataset |= _in_rows(edges, of_edges, int(indptr[-1]), name)
    if time is not None:
        of_time = as_times(_array(data, time, name), edges.shape[1], f"{name}: {time}", f"`del data.{time}`")
        listed_edges = [TimedEdges(edges.T, of_time)]
        dataset[EDGE_TIME] = times_in_rows(Topology(indptr, indices), listed_edges, of_time.dtype)
    dataset |= {key: np.ascontiguousarray(arrays[key]) for key in arrays if key.endswith("_mask")}
    if x.dtype != np.float16:
        x = x.astype(np.float32, copy=False)
    return Dataset(name, dataset, FeatureRows.of(np.ascontiguousarray(x)))


def _time_of_edges(held: dict[str, Any], arrays: dict[str, Array]) -> str | None:
    """Return the name of the attribute that has the times of edges, if there is one."""
    num_edges, num_vertices = arrays["edge_index"].shape[-1], len(arrays["x"])
    for key in NAMES:
        length = getattr(held.get(key), "shape", (None,))[:1]
        if held.get(key) is not None and (key == EDGE_TIME or length == (num_edges,) != (num_vertices,)):
            return key
    return None


def _in_rows(edges: Array, of_edges: dict[str, Array], num_edges: int, name: str) -> dict[str, Array]:
    """Types, weights and features of the edges in the order of the rows, without those of self loops."""
    expected = {
        EDGE_TYPE: ("integers", "iu", 1),
        EDGE_WEIGHT: ("numbers", "iuf", 1),
        _ATTRIBUTES: ("numbers", "iufb", 2),
    }
    for key, values in of_edges.items():
        what, kinds, ndim = expected[key]
        shape = values.shape[:-1] if ndim == 1 and values.ndim == 2 and values.shape[1] == 1 else values.shape
        fits = shape[:1] == edges.shape[1:] and len(shape) in (1, ndim)
        if not fits or values.dtype.kind not in kinds:
            columns = ", d" * (ndim - 1)
            raise reject(
                name,
                key,
                f"{values.dtype.name} of shape {list(values.shape)}, expected {what} "
                f"[{edges.shape[1]}{columns}]",
            )
    remedy = "torch_geometric.transforms.ToUndirected or coalesce"
    order = edges_in_rows(edges[0], edges[1], num_edges, name, next(iter(of_edges)), remedy)
    found: dict[str, Array] = {}
    for key, values in of_edges.items():
        rows = values.reshape(len(values), -1)[order]
        if key == EDGE_TYPE:
            found[EDGE_TYPE] = as_labels(rows[:, 0], name, EDGE_TYPE)
        elif key == EDGE_WEIGHT or (rows.shape[1] == 1 and EDGE_WEIGHT not in of_edges):
            found[EDGE_WEIGHT] = np.ascontiguousarray(rows[:, 0], np.float32)
        else:
            found[EDGE_FEATURES] = np.ascontiguousarray(rows, np.float32)
    return found


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=6)


def _array(data: Any, key: str, name: str) -> Array:
    value = getattr(data, key, None)
    if value is None:
        remedy = " (torch_geometric.transforms.RandomNodeSplit makes one)" if key.endswith("_mask") else ""
        raise DataError(
            f"{name}: attribute '{key}' is missing{remedy}; a graph is a .npz file, a folder, or a PyG Data"
        )
    if getattr(value, "layout", None) is not None and "strided" not in str(value.layout):
        raise DataError(f"{name}: attribute '{key}' is sparse: make it dense with .to_dense()")
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
