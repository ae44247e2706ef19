"""PyG `Data` objects, read by their attributes: torch_geometric itself is not imported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning
from hyrt.graph.check import nearest, reject
from hyrt.graph.csr import Store, build_csr
from hyrt.graph.formats.schema import EDGE_TYPE, Dataset, FeatureRows, names_edges
from hyrt.graph.labels.foreign_labels import as_labels, as_targets
from hyrt.graph.vertex_table import SPLITS

Array = NDArray[Any]


def read_pyg(data: Any) -> Dataset:
    """Make a dataset of a homogeneous PyG `Data` with x, edge_index, y and the three masks.

    Edges run from row 0 to row 1 of `edge_index` and stay directed; duplicates and self loops are left out
    (models that want self loops add their own). Labels are classes, labels of 0 and 1 or numbers, as
    `as_targets` reads them; NaN means no label. Features that are not float16
    become float32. `edge_type`, where there is one, is a type for each edge; then no two edges may be equal.

    Raises
    ------
    DataError
        Names the missing or malformed attribute, or what would be dropped: weights or features of edges.
    """
    kind = type(data).__name__
    name = f"PyG {kind}"
    if kind == "HeteroData":
        raise DataError(
            f"{name}: a heterogeneous graph; hyrt reads only homogeneous graphs: use data.to_homogeneous()"
        )
    if not hasattr(data, "x") and not hasattr(data, "edge_index"):
        raise DataError(
            f"{data!r:.80} is no graph: give the path of a .npz file or a folder, a name such as "
            "synthetic:tiny, or a PyG Data"
        )
    held = data.to_dict() if hasattr(data, "to_dict") else getattr(data, "__dict__", {})
    for key, value in held.items():
        if value is not None and key not in ("edge_index", EDGE_TYPE) and names_edges(key):
            raise DataError(
                f"{name}: attribute '{key}': hyrt cannot use weights or features of edges yet: to train "
                f"without them, `del data.{key}`"
            )
    arrays = {
        key: _array(data, key, name) for key in ("x", "edge_index", "y", *(f"{s}_mask" for s in SPLITS))
    }
    types = None if held.get(EDGE_TYPE) is None else _array(data, EDGE_TYPE, name)
    for key, value in held.items():
        if key not in (*arrays, EDGE_TYPE) and getattr(value, "ndim", None):
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
    indices = Store(np.dtype(np.int32 if len(x) < 2**31 else np.int64))
    indptr = build_csr(
        lambda: iter([(np.ascontiguousarray(edges[0]), np.ascontiguousarray(edges[1]))]),
        len(x),
        symmetric=False,
        emit=indices.append,
        source=name,
    )
    left_out = edges.shape[1] - int(indptr[-1])
    if left_out:
        _warn(
            f"{name}: {left_out:,} of {edges.shape[1]:,} edges are left out: self loops, or equal to others"
        )
    dataset: dict[str, Array] = {
        "indptr": indptr,
        "indices": indices.finish(),
        "labels": as_targets(y, name, "y"),
    }
    if types is not None:
        dataset[EDGE_TYPE] = _types_in_rows(edges, types, int(indptr[-1]), name)
    dataset |= {key: np.ascontiguousarray(arrays[key]) for key in arrays if key.endswith("_mask")}
    if x.dtype != np.float16:
        x = x.astype(np.float32, copy=False)
    return Dataset(name, dataset, FeatureRows.of(np.ascontiguousarray(x)))


def _types_in_rows(edges: Array, types: Array, num_edges: int, name: str) -> Array:
    """The types of the edges in the order of the rows, without those of self loops."""
    if types.ndim == 2 and types.shape[1] == 1:
        types = types[:, 0]
    if types.shape != edges.shape[1:] or types.dtype.kind not in "iu":
        raise reject(
            name,
            EDGE_TYPE,
            f"{types.dtype.name} of shape {list(types.shape)}, expected integers [{edges.shape[1]}]",
        )
    kept = np.flatnonzero(edges[0] != edges[1])
    if len(kept) != num_edges:
        raise reject(
            name,
            EDGE_TYPE,
            "cannot be used where several edges go from one vertex to another, of which hyrt keeps one: give "
            "each pair of vertices one edge, such as with a type of its own for each set of types",
        )
    order = kept[np.lexsort((edges[0][kept], edges[1][kept]))]
    return as_labels(types[order], name, EDGE_TYPE)


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
