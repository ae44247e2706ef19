"""PyG `HeteroData` objects, read by their attributes without importing torch_geometric."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, warn_user
from hyrt.graph.check import nearest
from hyrt.graph.formats.objects.edge_weights import as_edge_features, as_weights
from hyrt.graph.formats.objects.hetero_parts import HeteroParts, Triple, hetero_dataset
from hyrt.graph.formats.objects.tensors import as_array, as_mask
from hyrt.graph.formats.schema import EDGE_WEIGHT, Dataset, names_edges
from hyrt.graph.links.edge_times import NAMES, as_times
from hyrt.graph.vertex_table import SPLITS

Array = NDArray[Any]

NAME = "PyG HeteroData"
_VERTEX_KEYS = ("x", "y", "num_nodes", *(f"{split}_mask" for split in SPLITS))
_EDGE_KEYS = (EDGE_WEIGHT, "edge_attr")
"""Names of edge weights and edge features."""


def read_hetero_data(data: Any) -> Dataset:
    """Build a dataset from a PyG `HeteroData`.

    Per vertex type, `x` is read if it exists (a model learns embeddings for the other types), and for one
    type `y` and the three masks. Per edge type, `edge_index`, `edge_weight`, `edge_attr` and `edge_time` (or
    `time`, or `timestamp`) are read. `edge_attr` are the edge features, or the edge weight if it has one
    column and there is no `edge_weight`. Edges stay directed. Equal edges are merged: their weights are
    summed, and the earliest time is kept.

    Raises
    ------
    DataError
        If something is missing or malformed, or if other edge values would be ignored.
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
                hint = nearest(key, _VERTEX_KEYS, cutoff=0.75)
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
    return hetero_dataset(
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
    raise DataError(f"{NAME}: {location} does not say how many vertices there are: set {location}.num_nodes")


def _edges(
    data: Any,
) -> tuple[dict[Triple, tuple[Array, Array]], dict[Triple, Array], dict[Triple, Array], dict[Triple, Array]]:
    """Return endpoints, weights, features and times of the edges, per relation that has them."""
    endpoints: dict[Triple, tuple[Array, Array]] = {}
    weights: dict[Triple, Array] = {}
    features: dict[Triple, Array] = {}
    times: dict[Triple, Array] = {}
    for triple in data.edge_types:
        store = data[triple].to_dict()
        location = f"data[{', '.join(map(repr, triple))}]"
        for key, value in store.items():
            of_links = ("edge_label", "edge_label_index") if "edge_label_index" in store else ()
            known = ("edge_index", *_EDGE_KEYS, *NAMES, *of_links)
            if value is not None and key not in known and names_edges(key):
                raise DataError(
                    f"{NAME}: {location}.{key}: hyrt would leave this out, because it reads only edge_weight "
                    "and edge_attr of the edges of HeteroData: rename it, or to train "
                    f"without it, `del {location}.{key}`"
                )
        if store.get("edge_index") is None:
            reason = (
                "adj_t is not read: ToSparseTensor makes it of edge_index, leave it out"
                if "adj_t" in store
                else "set it to integers [2, E]"
            )
            raise DataError(f"{NAME}: {location}.edge_index is missing: {reason}")
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
        for key in [key for key in NAMES if store.get(key) is not None][:1]:
            values = as_array(store[key], f"{NAME}: {location}.{key}")
            times[tuple(triple)] = as_times(
                values, edges.shape[1], f"{NAME}: {location}.{key}", f"`del {location}.{key}`"
            )
    return endpoints, weights, features, times
