"""Homogeneous and heterogeneous DGL graphs, read by attribute without importing dgl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, warn_user
from hyrt.graph.check import convert_targets, suggest_name
from hyrt.graph.formats.objects.hetero_parts import HeteroParts, build_hetero_dataset
from hyrt.graph.formats.objects.tensors import (
    as_array,
    as_edge_features,
    as_mask,
    as_weights,
    build_csr_of_pairs,
    find_csr_order,
)
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_WEIGHT, Dataset, FeatureRows
from hyrt.graph.graph import SPLITS
from hyrt.graph.links.edges import TIME_NAMES, TimedEdges, convert_times, order_edge_times
from hyrt.graph.topology import Topology

Array = NDArray[Any]

_READ = ("feat", "label", *(f"{split}_mask" for split in SPLITS))
# Keys that DGL adds to subgraphs: vertex and edge ids in the parent graph.
_SUBGRAPH_KEYS = ("_ID", "_TYPE")
WEIGHT_NAMES = ("weight", "w", "edge_weight")
_FEATURES = "feat"


def read_heterograph(graph: Any, name: str) -> Dataset:
    """Build a dataset from a DGL graph with several types of vertices or edges.

    Per vertex type, `feat` is read if it exists (a model learns embeddings for the other types), and for one
    type `label` and the three masks. Per relation, `weight` (or `w`, or `edge_weight`) is the edge weight,
    `feat` are the edge features, and `edge_time` (or `time`, or `timestamp`) is the edge time. Edges stay
    directed. Equal edges are merged: their weights are summed, and the earliest time is kept.

    Raises DataError if something is missing or malformed, or if other edge values would be ignored.
    """
    counts: dict[str, int] = {}
    features: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    masks: dict[str, dict[str, Array]] = {}
    for vertex_type in graph.ntypes:
        data = graph.nodes[vertex_type].data
        location = f"g.nodes['{vertex_type}'].data"
        for key in data:
            if key not in _READ and key not in _SUBGRAPH_KEYS:
                hint = suggest_name(key, _READ, cutoff=0.75)
                warn_user(f"{name}: {location}[{key!r}] is not read{hint}", DataWarning)
        counts[vertex_type] = int(graph.num_nodes(vertex_type))
        if "feat" in data:
            features[vertex_type] = as_array(data["feat"], f"{name}: {location}['feat']")
        if "label" in data:
            labels[vertex_type] = as_array(data["label"], f"{name}: {location}['label']")
        masks[vertex_type] = {
            split: as_mask(as_array(data[f"{split}_mask"], label), label)
            for split in SPLITS
            for label in (f"{name}: {location}['{split}_mask']",)
            if f"{split}_mask" in data
        }
    edges: dict[tuple[str, str, str], tuple[Array, Array]] = {}
    weights: dict[tuple[str, str, str], Array] = {}
    of_relations: dict[tuple[str, str, str], Array] = {}
    times: dict[tuple[str, str, str], Array] = {}
    for triple in graph.canonical_etypes:
        data = graph.edges[triple].data
        location = f"g.edges[{', '.join(map(repr, triple))}].data"
        time = [key for key in TIME_NAMES if key in data][:1]
        of_edges = sorted(
            (key for key in data if key not in (*_SUBGRAPH_KEYS, *time)),
            key=lambda key: key not in WEIGHT_NAMES,
        )
        # Only the first weight is read; other weights would be dropped.
        read = [key for i, key in enumerate(of_edges) if key == _FEATURES or (not i and key in WEIGHT_NAMES)]
        dropped = [key for key in of_edges if key not in read]
        if dropped:
            raise DataError(
                f"{name}: {location}[{dropped[0]!r}]: hyrt would leave this out, because it reads only one "
                "weight of edges (weight, w or edge_weight), feat and one time: to train without it, "
                f"`{location}.pop({dropped[0]!r})`"
            )
        sources, destinations = (as_array(ends, f"{name}: {location}") for ends in graph.edges(etype=triple))
        edges[tuple(triple)] = (sources, destinations)
        for key in read:
            target, made = (of_relations, as_edge_features) if key == _FEATURES else (weights, as_weights)
            remedy = f"`{location}.pop({key!r})`"
            label = f"{name}: {location}[{key!r}]"
            target[tuple(triple)] = made(as_array(data[key], label), len(sources), label, remedy)
        for key in time:
            label, remedy = f"{name}: {location}[{key!r}]", f"`{location}.pop({key!r})`"
            times[tuple(triple)] = convert_times(as_array(data[key], label), len(sources), label, remedy)
    return build_hetero_dataset(
        HeteroParts(
            name,
            counts,
            features,
            labels,
            masks,
            edges,
            weights,
            of_relations,
            "g.nodes['{}'].data['label']",
            "g.nodes['{}'].data['{}_mask']",
            times,
        )
    )


NAME = "DGL graph"


def is_dgl(source: Any) -> bool:
    """Return whether an object looks like a DGL graph."""
    return hasattr(source, "ndata") and hasattr(source, "edata")


def read_dgl(graph: Any, name: str = NAME) -> Dataset:
    """Build a dataset from a DGL graph with `feat`, `label` and the three masks in `ndata`.

    In `edata`, `weight` (or `w`, or `edge_weight`) is the edge weight, and `feat` [E, d] are the edge
    features; with one of these, duplicate edges are an error. `edge_time` (or `time`, or `timestamp`) is the
    edge time; of equal edges, the earliest time is kept.

    Edges stay directed, and equal edges are merged. Labels are converted by `convert_targets`, features other
    than float16 to float32. Graphs with several vertex or edge types are read by `read_heterograph`. Raises
    DataError if something is missing or malformed, or if other edge values would be ignored.
    """
    if getattr(graph, "is_block", False):
        raise DataError(f"{name}: a block of a mini-batch: give the whole graph; hyrt samples it itself")
    vertex_types, edge_types = (list(getattr(graph, key, [None])) for key in ("ntypes", "etypes"))
    if len(vertex_types) != 1 or len(edge_types) != 1:
        return read_heterograph(graph, name)
    weights, time = ([key for key in names if key in graph.edata][:1] for names in (WEIGHT_NAMES, TIME_NAMES))
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
            warn_user(
                f"{name}: ndata[{key!r}] is not read{suggest_name(key, _READ, cutoff=0.75)}", DataWarning
            )
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
    indptr, indices = build_csr_of_pairs(sources, destinations, count, name)
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
        "labels": convert_targets(y, name, "label"),
    }
    dataset |= of_edges
    for key in time:
        location, remedy = f"{name}: edata[{key!r}]", f"`g.edata.pop({key!r})`"
        times = convert_times(as_array(graph.edata[key], location), len(sources), location, remedy)
        listed_edges = [TimedEdges(np.stack([sources, destinations], axis=1), times)]
        dataset[EDGE_TIME] = order_edge_times(Topology(indptr, indices), listed_edges, times.dtype)
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
    return Dataset(name, dataset, FeatureRows.from_array(np.ascontiguousarray(x)))


def _read_edge_data(
    edge_data: Mapping[str, Any], pairs: tuple[Array, Array], num_edges: int, name: str
) -> dict[str, Array]:
    """Return edge weights and features by schema key, in row order."""
    values_by_key: dict[str, Array] = {}
    if not edge_data:
        return values_by_key
    remedy = "dgl.to_simple(g, copy_edata=True, aggregator='sum')"
    order = find_csr_order(*pairs, num_edges, name, f"edata[{next(iter(edge_data))!r}]", remedy)
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
        raise DataError(f"{name}: ndata[{key!r}] is missing{suggest_name(key, data) or _remedy(key)}")
    return as_array(data[key], f"{name}: ndata[{key!r}]")


def _remedy(key: str) -> str:
    """Return how to set a missing key."""
    if not key.endswith("_mask"):
        return f": set g.ndata[{key!r}] = ..."
    return (
        ": dgl.data.utils.add_nodepred_split(dataset, (0.6, 0.2, 0.2)) makes masks of a dataset; otherwise "
        f"set g.ndata[{key!r}] to a bool for each vertex"
    )
