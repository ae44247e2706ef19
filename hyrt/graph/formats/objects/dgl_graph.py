"""DGL graphs, read by their attributes without importing dgl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, warn_user
from hyrt.graph.check import nearest
from hyrt.graph.formats.objects.dgl_heterograph import WEIGHTS, read_heterograph
from hyrt.graph.formats.objects.edge_pairs import edges_in_rows, rows_of_pairs
from hyrt.graph.formats.objects.edge_weights import as_weights
from hyrt.graph.formats.objects.tensors import as_array, as_mask
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_WEIGHT, Dataset, FeatureRows
from hyrt.graph.labels.foreign_labels import as_targets
from hyrt.graph.links.edge_times import NAMES, TimedEdges, as_times, times_in_rows
from hyrt.graph.topology import Topology
from hyrt.graph.vertex_table import SPLITS

Array = NDArray[Any]

NAME = "DGL graph"
_READ = ("feat", "label", *(f"{split}_mask" for split in SPLITS))
# Keys that DGL adds to subgraphs: vertex and edge numbers in the parent graph.
_SUBGRAPH_KEYS = ("_ID", "_TYPE")
_FEATURES = "feat"


def is_dgl(source: Any) -> bool:
    """Return whether an object looks like a DGL graph."""
    return hasattr(source, "ndata") and hasattr(source, "edata")


def read_dgl(graph: Any, name: str = NAME) -> Dataset:
    """Build a dataset from a DGL graph with `feat`, `label` and the three masks in `ndata`.

    In `edata`, `weight` (or `w`, or `edge_weight`) is the edge weight, and `feat` [E, d] are the edge
    features; with one of these, no two edges may be equal. `edge_time` (or `time`, or `timestamp`) is the
    edge time; of equal edges, the earliest time is kept.

    Graphs with several vertex or edge types are read by `read_heterograph`. `name` is the name of the graph
    in messages.

    Edges stay directed; of equal edges, one is stored. Labels are classes, multi-label flags of 0 and 1, or
    numbers, as converted by `as_targets`; NaN means no label. Features other than float16 become float32.

    Raises
    ------
    DataError
        If something is missing or malformed, or if other edge values would be ignored.
    """
    if getattr(graph, "is_block", False):
        raise DataError(f"{name}: a block of a mini-batch: give the whole graph; hyrt samples it itself")
    vertex_types, edge_types = (list(getattr(graph, key, [None])) for key in ("ntypes", "etypes"))
    if len(vertex_types) != 1 or len(edge_types) != 1:
        return read_heterograph(graph, name)
    weights, time = ([key for key in names if key in graph.edata][:1] for names in (WEIGHTS, NAMES))
    for key in graph.edata:
        if key not in (*weights, *time, _FEATURES, *_SUBGRAPH_KEYS):
            raise DataError(
                f"{name}: edata[{key!r}]: hyrt would leave this out, because it reads only one weight of "
                "edges (weight, w or edge_weight), their features (feat) and one time: to train without it, "
                f"`g.edata.pop({key!r})`"
            )
    masks = tuple(f"{split}_mask" for split in SPLITS)
    is_bare = not any(key in graph.ndata for key in masks)
    read = [key for key in _READ if key in graph.ndata or not is_bare]
    arrays = {key: _array(graph.ndata, key, name) for key in read}
    for key in graph.ndata:
        if key not in _READ and key not in _SUBGRAPH_KEYS:
            warn_user(f"{name}: ndata[{key!r}] is not read{nearest(key, _READ, cutoff=0.75)}", DataWarning)
    count = len(arrays["feat"]) if "feat" in arrays else int(graph.num_nodes(vertex_types[0]))
    x, y = arrays.get("feat"), arrays.get("label", np.full(count, -1, np.int8))
    if x is not None and x.ndim != 2:
        raise DataError(f"{name}: ndata['feat'] has shape {list(x.shape)}, expected [V, F]: reshape it")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise DataError(
            f"{name}: ndata['label'] has shape {list(y.shape)}, expected [V] or [V, K]: reshape it"
        )
    sources, destinations = (as_array(ends, f"{name}: edges") for ends in graph.edges())
    indptr, indices = rows_of_pairs(sources, destinations, count, name)
    edge_data = {key: graph.edata[key] for key in graph.edata if key not in (*_SUBGRAPH_KEYS, *time)}
    of_edges = _read_edge_data(edge_data, (sources, destinations), len(indices), name)
    left_out = len(sources) - len(indices)
    if left_out:
        warn_user(
            f"{name}: {left_out:,} of {len(sources):,} edges are equal to others and left out",
            DataWarning,
        )
    dataset: dict[str, Array] = {
        "indptr": indptr,
        "indices": indices,
        "labels": as_targets(y, name, "label"),
    }
    dataset |= of_edges
    for key in time:
        location, remedy = f"{name}: edata[{key!r}]", f"`g.edata.pop({key!r})`"
        times = as_times(as_array(graph.edata[key], location), len(sources), location, remedy)
        listed_edges = [TimedEdges(np.stack([sources, destinations], axis=1), times)]
        dataset[EDGE_TIME] = times_in_rows(Topology(indptr, indices), listed_edges, times.dtype)
    dataset |= {
        key: as_mask(arrays[key], f"{name}: ndata[{key!r}]") for key in arrays if key.endswith("_mask")
    }
    if is_bare:
        dataset |= {key: np.zeros(count, np.bool_) for key in masks}
        if "label" in arrays:
            warn_user(
                f"{name}: there are no masks, so vertices are in no split and only links can be predicted"
                f"{_remedy(masks[0])}",
                DataWarning,
            )
    if x is None:
        warn_user(
            f"{name}: there is no ndata['feat']: the feature of a vertex is the logarithm of its degree",
            DataWarning,
        )
        x = np.log1p(np.diff(indptr))[:, None]
    if x.dtype != np.float16:
        x = x.astype(np.float32, copy=False)
    return Dataset(name, dataset, FeatureRows.of(np.ascontiguousarray(x)))


def _read_edge_data(
    edge_data: Mapping[str, Any], pairs: tuple[Array, Array], num_edges: int, name: str
) -> dict[str, Array]:
    """Return edge weights and features by schema key, in row order."""
    values_by_key: dict[str, Array] = {}
    if not edge_data:
        return values_by_key
    remedy = "dgl.to_simple(g, copy_edata=True, aggregator='sum')"
    order = edges_in_rows(*pairs, num_edges, name, f"edata[{next(iter(edge_data))!r}]", remedy)
    for key, tensor in edge_data.items():
        location, values = f"edata[{key!r}]", as_array(tensor, f"{name}: edata[{key!r}]")
        if key != _FEATURES:
            remedy_without = f"`g.edata.pop({key!r})`"
            weights = as_weights(values, len(pairs[0]), f"{name}: {location}", remedy_without)
            values_by_key[EDGE_WEIGHT] = weights[order]
            continue
        if values.ndim > 2 or len(values) != len(pairs[0]) or values.dtype.kind not in "iufb":
            raise DataError(
                f"{name}: {location} is {values.dtype.name} of shape {list(values.shape)}, expected numbers "
                f"[{len(pairs[0])}, d]: convert it"
            )
        values_by_key[EDGE_FEATURES] = np.ascontiguousarray(
            values.reshape(len(values), -1)[order], np.float32
        )
    return values_by_key


def _array(data: Mapping[str, Any], key: str, name: str) -> Array:
    if key not in data:
        raise DataError(f"{name}: ndata[{key!r}] is missing{nearest(key, data) or _remedy(key)}")
    return as_array(data[key], f"{name}: ndata[{key!r}]")


def _remedy(key: str) -> str:
    """Return how to set a missing key."""
    if not key.endswith("_mask"):
        return f": set g.ndata[{key!r}] = ..."
    return (
        ": dgl.data.utils.add_nodepred_split(dataset, (0.6, 0.2, 0.2)) makes masks of a dataset; otherwise "
        f"set g.ndata[{key!r}] to a bool for each vertex"
    )
