"""PyG `HeteroData` objects, read by their attributes: torch_geometric itself is not imported."""

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
_OF_VERTICES = ("x", "y", "num_nodes", *(f"{split}_mask" for split in SPLITS))
_OF_EDGES = (EDGE_WEIGHT, "edge_attr")
"""What weights and features of edges are called."""


def read_hetero_data(data: Any) -> Dataset:
    """Make a dataset of a PyG `HeteroData`.

    Of each type of vertices, `x` is read where there is one (a model learns rows for the others), and of one
    type `y` and the three masks; of each type of edges, `edge_index`, `edge_weight` and `edge_attr`, their
    features, or their weights where it has one column and there is no `edge_weight`, and `edge_time` (or
    `time`, or `timestamp`). Edges stay directed; equal ones are one, with the sum of their weights and the
    earliest time.

    Raises
    ------
    DataError
        Names what is missing or malformed, or what would be dropped: other values of edges.
    """
    counts: dict[str, int] = {}
    features: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    masks: dict[str, dict[str, Array]] = {}
    for vertex_type in data.node_types:
        held = data[vertex_type].to_dict()
        where = f"data['{vertex_type}']"
        arrays = {
            key: as_array(held[key], f"{NAME}: {where}.{key}")
            for key in _OF_VERTICES
            if key != "num_nodes" and held.get(key) is not None
        }
        for key, value in held.items():
            if key not in _OF_VERTICES and getattr(value, "ndim", None):
                hint = nearest(key, _OF_VERTICES, cutoff=0.75)
                warn_user(f"{NAME}: {where}.{key} is not read{hint}", DataWarning)
        counts[vertex_type] = _count(held, arrays, where)
        if "x" in arrays:
            features[vertex_type] = arrays["x"]
        if "y" in arrays:
            labels[vertex_type] = arrays["y"]
        masks[vertex_type] = {
            split: as_mask(arrays[f"{split}_mask"], f"{NAME}: {where}.{split}_mask")
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


def _count(held: dict[str, Any], arrays: dict[str, Array], where: str) -> int:
    if held.get("num_nodes") is not None:
        return int(held["num_nodes"])
    if arrays:
        return len(next(iter(arrays.values())))
    raise DataError(f"{NAME}: {where} does not say how many vertices there are: set {where}.num_nodes")


def _edges(
    data: Any,
) -> tuple[dict[Triple, tuple[Array, Array]], dict[Triple, Array], dict[Triple, Array], dict[Triple, Array]]:
    """Return the ends of the edges of each relation, and weights, features and times of those with some."""
    found: dict[Triple, tuple[Array, Array]] = {}
    weights: dict[Triple, Array] = {}
    features: dict[Triple, Array] = {}
    times: dict[Triple, Array] = {}
    for triple in data.edge_types:
        held = data[triple].to_dict()
        where = f"data[{', '.join(map(repr, triple))}]"
        for key, value in held.items():
            of_links = ("edge_label", "edge_label_index") if "edge_label_index" in held else ()
            known = ("edge_index", *_OF_EDGES, *NAMES, *of_links)
            if value is not None and key not in known and names_edges(key):
                raise DataError(
                    f"{NAME}: {where}.{key}: hyrt would leave this out, because it reads only edge_weight "
                    "and edge_attr of the edges of HeteroData: rename it, or to train "
                    f"without it, `del {where}.{key}`"
                )
        if held.get("edge_index") is None:
            why = (
                "adj_t is not read: ToSparseTensor makes it of edge_index, leave it out"
                if "adj_t" in held
                else "set it to integers [2, E]"
            )
            raise DataError(f"{NAME}: {where}.edge_index is missing: {why}")
        edges = as_array(held["edge_index"], f"{NAME}: {where}.edge_index")
        if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
            raise DataError(
                f"{NAME}: {where}.edge_index is {edges.dtype.name} of shape {list(edges.shape)}, expected "
                "integers [2, E]: convert it"
            )
        found[tuple(triple)] = (edges[0], edges[1])
        for key in _OF_EDGES:
            if held.get(key) is None:
                continue
            values = as_array(held[key], f"{NAME}: {where}.{key}")
            asked = edges.shape[1], f"{NAME}: {where}.{key}", f"`del {where}.{key}`"
            narrow = values.ndim == 1 or values.shape[1:] == (1,)
            if key == EDGE_WEIGHT or (narrow and held.get(EDGE_WEIGHT) is None):
                weights[tuple(triple)] = as_weights(values, *asked)
            else:
                features[tuple(triple)] = as_edge_features(values, *asked)
        for key in [key for key in NAMES if held.get(key) is not None][:1]:
            values = as_array(held[key], f"{NAME}: {where}.{key}")
            times[tuple(triple)] = as_times(
                values, edges.shape[1], f"{NAME}: {where}.{key}", f"`del {where}.{key}`"
            )
    return found, weights, features, times
