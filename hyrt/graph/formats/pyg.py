"""PyG `Data` and `HeteroData` objects, read by attribute without importing torch_geometric."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, join_names, warn_user
from hyrt.graph.check import convert_classes, convert_targets, reject, suggest_name
from hyrt.graph.formats.object_parts import (
    HeteroParts,
    Triple,
    as_array,
    as_edge_features,
    as_mask,
    as_weights,
    build_csr_of_pairs,
    build_hetero_dataset,
    find_csr_order,
    read_adjacency,
)
from hyrt.graph.formats.schema import (
    EDGE_FEATURES,
    EDGE_TIME,
    EDGE_TYPE,
    EDGE_WEIGHT,
    Dataset,
    FeatureRows,
    is_edge_key,
)
from hyrt.graph.graph import SPLITS
from hyrt.graph.links.edges import TIME_NAMES, TimedEdges, convert_times, order_edge_times
from hyrt.graph.topology import Topology

Array = NDArray[Any]

NAME = "PyG HeteroData"
_VERTEX_KEYS = ("x", "y", "num_nodes", *(f"{split}_mask" for split in SPLITS))
_EDGE_KEYS = (EDGE_WEIGHT, "edge_attr")


def read_hetero_data(data: Any) -> Dataset:
    """Build a dataset from a PyG `HeteroData`.

    Vertex types have features `x` (a model learns embeddings for types without them), and one type has `y`
    and the three masks. For edge types, `edge_index`, `edge_weight`, `edge_attr` and `edge_time` (or `time`,
    or `timestamp`) are read. `edge_attr` are the edge features, or the edge weight if it has one column and
    there is no `edge_weight`. Edges stay directed. Equal edges are merged: their weights are summed, and the
    earliest time is used.

    Raises DataError if something is missing or malformed, or if other edge values would be ignored.
    """
    counts: dict[str, int] = {}
    features: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    masks: dict[str, dict[str, Array]] = {}
    for vertex_type in data.node_types:
        store = data[vertex_type].to_dict()
        location = f"data['{vertex_type}']"
        arrays = {
            key: as_array(store[key], f"{NAME}: {location}.{key}")
            for key in _VERTEX_KEYS
            if key != "num_nodes" and store.get(key) is not None
        }
        for key, value in store.items():
            if key not in _VERTEX_KEYS and getattr(value, "ndim", None):
                hint = suggest_name(key, _VERTEX_KEYS, cutoff=0.75)
                warn_user(f"{NAME}: {location}.{key} is not read{hint}", DataWarning)
        counts[vertex_type] = _count(store, arrays, location)
        if "x" in arrays:
            features[vertex_type] = arrays["x"]
        if "y" in arrays:
            labels[vertex_type] = arrays["y"]
        masks[vertex_type] = {
            split: as_mask(arrays[f"{split}_mask"], f"{NAME}: {location}.{split}_mask")
            for split in SPLITS
            if f"{split}_mask" in arrays
        }
    edges, weights, of_edges, times = _edges(data)
    return build_hetero_dataset(
        HeteroParts(
            NAME,
            counts,
            features,
            labels,
            masks,
            edges,
            weights,
            of_edges,
            "data['{}'].y",
            "data['{}'].{}_mask",
            times,
        )
    )


def _count(store: dict[str, Any], arrays: dict[str, Array], location: str) -> int:
    if store.get("num_nodes") is not None:
        return int(store["num_nodes"])
    if arrays:
        return len(next(iter(arrays.values())))
    raise DataError(f"{NAME}: {location} does not specify the number of vertices: set {location}.num_nodes")


def _edges(
    data: Any,
) -> tuple[dict[Triple, tuple[Array, Array]], dict[Triple, Array], dict[Triple, Array], dict[Triple, Array]]:
    """Return the endpoints of all edges; weights, features and times only for relations with such values."""
    endpoints: dict[Triple, tuple[Array, Array]] = {}
    weights: dict[Triple, Array] = {}
    features: dict[Triple, Array] = {}
    times: dict[Triple, Array] = {}
    for triple in data.edge_types:
        store = data[triple].to_dict()
        location = f"data[{', '.join(map(repr, triple))}]"
        for key, value in store.items():
            of_links = ("edge_label", "edge_label_index") if "edge_label_index" in store else ()
            known = ("edge_index", *_EDGE_KEYS, *TIME_NAMES, *of_links)
            if value is not None and key not in known and is_edge_key(key):
                raise DataError(
                    f"{NAME}: hyrt cannot use {location}.{key}, because it reads only edge_weight and "
                    "edge_attr of HeteroData edges: rename it, or to train without it, run `del "
                    f"{location}.{key}`"
                )
        if store.get("edge_index") is None:
            remedy = (
                ", and hyrt does not read adj_t of HeteroData: remove the transform ToSparseTensor"
                if "adj_t" in store
                else ": set it to integers [2, E]"
            )
            raise DataError(f"{NAME}: {location}.edge_index is missing{remedy}")
        edges = as_array(store["edge_index"], f"{NAME}: {location}.edge_index")
        if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
            raise DataError(
                f"{NAME}: {location}.edge_index is {edges.dtype.name} of shape {list(edges.shape)}, expected "
                "integers [2, E]: convert it"
            )
        endpoints[tuple(triple)] = (edges[0], edges[1])
        for key in _EDGE_KEYS:
            if store.get(key) is None:
                continue
            values = as_array(store[key], f"{NAME}: {location}.{key}")
            arguments = edges.shape[1], f"{NAME}: {location}.{key}", f"`del {location}.{key}`"
            is_single_column = values.ndim == 1 or values.shape[1:] == (1,)
            if key == EDGE_WEIGHT or (is_single_column and store.get(EDGE_WEIGHT) is None):
                weights[tuple(triple)] = as_weights(values, *arguments)
            else:
                features[tuple(triple)] = as_edge_features(values, *arguments)
        for key in [key for key in TIME_NAMES if store.get(key) is not None][:1]:
            values = as_array(store[key], f"{NAME}: {location}.{key}")
            times[tuple(triple)] = convert_times(
                values, edges.shape[1], f"{NAME}: {location}.{key}", f"`del {location}.{key}`"
            )
    return endpoints, weights, features, times


_ATTRIBUTES = "edge_attr"
_EDGE_ATTRIBUTES = (EDGE_TYPE, EDGE_WEIGHT, _ATTRIBUTES)
_LINK_ATTRIBUTES = ("edge_label", "edge_label_index")
"""Attributes of RandomLinkSplit, which are ignored: hyrt splits links itself or reads `links.split`."""


def read_pyg(data: Any) -> Dataset:
    """Build a dataset from a PyG `HeteroData`, or from a `Data` with x, edge_index, y and the three masks.

    A `HeteroData` is read by `read_hetero_data`. In a `Data` without masks (for link prediction), x and y are
    optional, and the default feature of a vertex is the logarithm of its degree. `adj_t` replaces a missing
    `edge_index`.

    Edges lead from row 0 to row 1 of `edge_index` and stay directed. Equal edges are merged. Labels are
    converted by `convert_targets`, and features other than float16 to float32. Optional edge attributes are
    `edge_type`, `edge_weight`, and `edge_attr`, which are the edge features, or the edge weight if it has one
    column and there is no `edge_weight`. With one of these, duplicate edges are an error. `edge_time` is the
    time of each edge, and so is `time` or `timestamp` if its length is the number of edges and not the number
    of vertices. Equal edges get the earliest time.

    Raises DataError if an attribute is missing or malformed, or if other edge values would be ignored.
    """
    kind = type(data).__name__
    name = f"PyG {kind}"
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        return read_hetero_data(data)
    if not hasattr(data, "x") and not hasattr(data, "edge_index"):
        raise DataError(
            f"{data!r:.80} is not a graph: use the path of a .npz file or a folder, a name such as "
            "synthetic:tiny, a PyG Data, or a DGL graph"
        )
    attributes = data.to_dict() if hasattr(data, "to_dict") else getattr(data, "__dict__", {})
    if attributes.get("edge_index") is None and attributes.get("adj_t") is not None:
        attributes = _with_edges_of_matrix(attributes, name)
    link_attributes = _LINK_ATTRIBUTES if attributes.get("edge_label_index") is not None else ()
    for key, value in attributes.items():
        known = ("edge_index", *_EDGE_ATTRIBUTES, EDGE_TIME, *link_attributes)
        if value is not None and key not in known and is_edge_key(key):
            raise DataError(
                f"{name}: hyrt cannot use attribute '{key}', because it reads only "
                f"{join_names(_EDGE_ATTRIBUTES, 'and')} of edges: rename it, or to train without it, run "
                f"`del data.{key}`"
            )
    masks = tuple(f"{split}_mask" for split in SPLITS)
    is_bare = all(attributes.get(key) is None for key in masks)
    read = ["edge_index", *(key for key in ("x", "y") if attributes.get(key) is not None or not is_bare)]
    arrays = {key: _array(attributes, key, name) for key in (*read, *(() if is_bare else masks))}
    edge_values = {
        key: _array(attributes, key, name) for key in _EDGE_ATTRIBUTES if attributes.get(key) is not None
    }
    time = _time_of_edges(attributes, arrays)
    for key, value in attributes.items():
        if key not in (*arrays, *_EDGE_ATTRIBUTES, "adj_t", time) and getattr(value, "ndim", None):
            warn_user(
                f"{name}: attribute '{key}' is not read{suggest_name(key, arrays, cutoff=0.75)}", DataWarning
            )
    edges = arrays["edge_index"]
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise reject(
            name,
            "edge_index",
            f"is {edges.dtype.name} of shape {list(edges.shape)}, expected integers [2, E]: convert it",
        )
    count = _num_vertices(data, attributes, arrays, name)
    x, y = arrays.get("x"), arrays.get("y", np.full(count, -1, np.int8))
    if x is not None and x.ndim != 2:
        raise reject(name, "x", f"has shape {list(x.shape)}, expected [V, F]: reshape it")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise reject(name, "y", f"has shape {list(y.shape)}, expected [V] or [V, K]: reshape it")
    for key, array in (("x", x), ("y", y)):
        if array is not None and array.dtype.kind not in "biuf":
            raise reject(name, key, f"has dtype {array.dtype.name}, expected real numbers: convert it")
    indptr, indices = build_csr_of_pairs(edges[0], edges[1], count, name)
    left_out = edges.shape[1] - int(indptr[-1])
    if left_out:
        warn_user(
            f"{name}: {left_out:,} of {edges.shape[1]:,} edges are duplicates and were merged",
            DataWarning,
        )
    dataset: dict[str, Array] = {
        "indptr": indptr,
        "indices": indices,
        "labels": convert_targets(y, name, "y"),
    }
    if edge_values:
        dataset |= _in_rows(edges, edge_values, int(indptr[-1]), name)
    if time is not None:
        edge_times = convert_times(
            _array(attributes, time, name), edges.shape[1], f"{name}: {time}", f"`del data.{time}`"
        )
        listed_edges = [TimedEdges(edges.T, edge_times)]
        dataset[EDGE_TIME] = order_edge_times(Topology(indptr, indices), listed_edges, edge_times.dtype)
    dataset |= {
        key: as_mask(arrays[key], f"{name}: attribute '{key}'") for key in arrays if key.endswith("_mask")
    }
    if is_bare:
        dataset |= {key: np.zeros(count, np.bool_) for key in masks}
        if "y" in arrays:
            warn_user(
                f"{name} has no masks, so vertices are in no split and only links can be predicted: create "
                "masks with torch_geometric.transforms.RandomNodeSplit",
                DataWarning,
            )
    if x is None:
        warn_user(f"{name} has no x: using the logarithm of each vertex's degree as its feature", DataWarning)
        x = np.log1p(np.diff(indptr))[:, None]
    if x.dtype != np.float16:
        x = x.astype(np.float32, copy=False)
    return Dataset(name, dataset, FeatureRows.from_array(np.ascontiguousarray(x)))


def _time_of_edges(attributes: dict[str, Any], arrays: dict[str, Array]) -> str | None:
    """Return the name of the attribute with edge times, if any."""
    num_edges = arrays["edge_index"].shape[-1]
    num_vertices = len(arrays["x"]) if "x" in arrays else attributes.get("num_nodes")
    for key in TIME_NAMES:
        length = getattr(attributes.get(key), "shape", (None,))[:1]
        if attributes.get(key) is not None and (
            key == EDGE_TIME or length == (num_edges,) != (num_vertices,)
        ):
            return key
    return None


def _with_edges_of_matrix(attributes: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the attributes with `edge_index` from `adj_t`, and its values as weights unless all are 1."""
    edges, values = read_adjacency(attributes["adj_t"], f"{name}: attribute 'adj_t'")
    with_edges = attributes | {"edge_index": edges}
    return with_edges if (values == 1).all() else with_edges | {EDGE_WEIGHT: values}


def _num_vertices(data: Any, attributes: dict[str, Any], arrays: dict[str, Array], name: str) -> int:
    if "x" in arrays:
        return len(arrays["x"])
    if attributes.get("num_nodes") is not None:
        return int(attributes["num_nodes"])
    if others := [array for key, array in arrays.items() if key != "edge_index"]:
        return len(others[0])
    if attributes.get("adj_t") is not None:
        return int(data.adj_t.shape[0])
    raise DataError(f"{name} does not specify the number of vertices: set data.num_nodes")


def _in_rows(edges: Array, edge_values: dict[str, Array], num_edges: int, name: str) -> dict[str, Array]:
    """Return edge types, weights and features in the order of rows."""
    expected = {
        EDGE_TYPE: ("integers", "iu", 1),
        EDGE_WEIGHT: ("numbers", "iuf", 1),
        _ATTRIBUTES: ("numbers", "iufb", 2),
    }
    for key, values in edge_values.items():
        description, kinds, ndim = expected[key]
        shape = values.shape[:-1] if ndim == 1 and values.ndim == 2 and values.shape[1] == 1 else values.shape
        fits = shape[:1] == edges.shape[1:] and len(shape) in (1, ndim)
        if not fits or values.dtype.kind not in kinds:
            columns = ", d" * (ndim - 1)
            raise reject(
                name,
                key,
                f"is {values.dtype.name} of shape {list(values.shape)}, expected {description} "
                f"[{edges.shape[1]}{columns}]: convert it",
            )
    remedy = "torch_geometric.transforms.ToUndirected or coalesce"
    order = find_csr_order(edges[0], edges[1], num_edges, name, next(iter(edge_values)), remedy)
    ordered: dict[str, Array] = {}
    for key, values in edge_values.items():
        rows = values.reshape(len(values), -1)[order]
        if key == EDGE_TYPE:
            ordered[EDGE_TYPE] = convert_classes(rows[:, 0], name, EDGE_TYPE)
        elif key == EDGE_WEIGHT or (rows.shape[1] == 1 and EDGE_WEIGHT not in edge_values):
            ordered[EDGE_WEIGHT] = np.ascontiguousarray(rows[:, 0], np.float32)
        else:
            ordered[EDGE_FEATURES] = np.ascontiguousarray(rows, np.float32)
    return ordered


_MISSING = {
    "edge_index": "set it to integers [2, E]",
    "x": "set it to a row of numbers for each vertex",
    "y": "set it to a class for each vertex, or remove the masks to predict links",
}


def _array(attributes: dict[str, Any], key: str, name: str) -> Array:
    value = attributes.get(key)
    if value is None:
        is_mask = key.endswith("_mask")
        remedy = "create it with torch_geometric.transforms.RandomNodeSplit" if is_mask else _MISSING[key]
        raise DataError(f"{name}: attribute '{key}' is missing: {remedy}")
    return as_array(value, f"{name}: attribute '{key}'")
