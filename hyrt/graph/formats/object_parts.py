"""Conversion of tensors and edge lists of other libraries to arrays, and code shared by heterogeneous PyG and
DGL graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import DataError, DataWarning, join_names, warn_user
from hyrt.formatting import short_repr
from hyrt.graph.check import convert_targets, reject
from hyrt.graph.csr import ArrayBuilder, build_csr
from hyrt.graph.formats.schema import (
    EDGE_FEATURES,
    EDGE_TIME,
    EDGE_TYPE,
    Dataset,
    FeatureRows,
    feature_table_name,
)
from hyrt.graph.graph import SPLITS
from hyrt.graph.hetero.check_types import find_name_problem
from hyrt.graph.hetero.dataset import (
    HeteroDatasetParts,
    assemble_dataset,
    describe_merged,
    stream_edge_lists,
)
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.links.edges import TimedEdges, order_edge_times
from hyrt.graph.topology import Topology

Array = NDArray[Any]

_LOW_PRECISION = ("bfloat16", "float8")
"""Floating-point dtypes that numpy lacks. They are converted to float32 without rounding."""


def as_array(value: Any, location: str) -> Array:
    """Convert a torch tensor or array-like to a numpy array; dequantize quantized tensors.

    `location` is the expression by which the user accesses the value, for messages. Raises DataError if the
    value is sparse, complex, or not an array of numbers.
    """
    if getattr(value, "layout", None) is not None and "strided" not in str(value.layout):
        raise DataError(f"{location} is sparse: make it dense with .to_dense()")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_quantized:
            value = value.dequantize()
        if any(name in str(value.dtype) for name in _LOW_PRECISION):
            value = value.float()
        try:
            value = value.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(
                f"{location}: hyrt cannot read {value.dtype}: convert it, for example to float32"
            ) from error
    try:
        array: Array = np.asarray(value)
    except ValueError:
        raise DataError(f"{location} is not an array: use one tensor") from None
    if array.dtype.kind == "c":
        raise DataError(
            f"{location} is complex, but hyrt reads only real numbers: convert it to real columns, for "
            "example with torch.view_as_real(x).flatten(1)"
        )
    if array.dtype.kind not in "biuf":
        raise DataError(f"{location} has values of type {array.dtype.name}: use numbers")
    if not array.ndim:
        raise DataError(f"{location} is the number {show(array)}: use an array")
    return array


def as_mask(values: Array, location: str) -> Array:
    """Convert a mask of bools, or of numbers 0 and 1, to bool. Raises DataError for other numbers."""
    if values.dtype == np.bool_:
        return np.ascontiguousarray(values)
    if not ((values == 0) | (values == 1)).all():
        raise DataError(
            f"{location} has values other than 0 and 1: use true or false for each vertex, not vertex numbers"
        )
    return values.astype(np.bool_)


def read_adjacency(matrix: Any, location: str) -> tuple[Array, Array]:
    """Return the edges of `adj_t`, which `ToSparseTensor` builds with one row per destination.

    Returns the sources and destinations [2, E], and the values [E]. Raises DataError if `matrix` is not a
    sparse matrix.
    """
    if hasattr(matrix, "coo"):  # A torch_sparse.SparseTensor has this method.
        rows, columns, values = matrix.coo()
        values = np.ones(len(rows)) if values is None else as_array(values, location)
        return np.stack([as_array(columns, location), as_array(rows, location)]), values
    if "sparse" not in str(getattr(matrix, "layout", "")):
        raise DataError(f"{location} is not a sparse matrix: set edge_index instead")
    # Coalescing would sum the values of equal edges.
    coo = matrix.detach().to_sparse_coo()
    return coo._indices().flip(0).cpu().numpy(), as_array(coo._values(), location)


def build_csr_of_pairs(
    sources: Array, destinations: Array, num_vertices: int, name: str
) -> tuple[Array, Array]:
    """Build the CSR matrix of directed edges [E] by destination, without duplicates.

    Returns indptr [V+1] int64 and indices int32 or int64, sorted within each row. Raises DataError if an
    endpoint is not a vertex.
    """
    indices = ArrayBuilder(np.dtype(np.int32 if num_vertices < 2**31 else np.int64))
    pairs = (np.ascontiguousarray(sources), np.ascontiguousarray(destinations))
    indptr = build_csr(
        lambda: iter([pairs]),
        num_vertices,
        symmetric=False,
        self_loops=True,
        emit=indices.append,
        source=name,
    )
    return indptr, indices.finish()


def find_csr_order(
    sources: Array, destinations: Array, num_edges: int, name: str, key: str, remedy: str
) -> NDArray[np.int64]:
    """Return the input position of each entry of `build_csr_of_pairs`, for sorting edge values like rows.

    Raises DataError if there are parallel edges, because only one of their values could be stored. `key` is
    the name of the values, and `remedy` how a user merges parallel edges.
    """
    if len(sources) != num_edges:
        raise reject(
            name,
            key,
            "has values for parallel edges, of which hyrt keeps only one: merge them, for example with "
            f"{remedy}",
        )
    order: NDArray[np.int64] = np.lexsort((sources, destinations))
    return order


def as_weights(values: Array, num_edges: int, location: str, remedy: str) -> Array:
    """Convert values [e] or [e, 1] to edge weights [e] float32.

    `location` is the expression by which the user accesses the values, and `remedy` how a user removes them.
    Raises DataError unless they are one finite positive number per edge.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.shape != (num_edges,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"{location} is {values.dtype.name} of shape {list(values.shape)}, expected one weight for each "
            f"of {num_edges:,} edges: to train without weights, run {remedy}"
        )
    with np.errstate(over="ignore"):
        weights: Array = flat.astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        index = int(wrong.argmax())
        raise DataError(
            f"{location}: value {flat[index]} at position {index} is not a valid weight: use a finite "
            f"number above 0, or to train without weights, run {remedy}"
        )
    return weights


def as_edge_features(values: Array, num_edges: int, location: str, remedy: str) -> Array:
    """Convert values [e, d] or [e] to edge features [e, d] float32, like `as_weights`.

    Raises DataError unless the values are one row of finite numbers per edge.
    """
    rows = values[:, None] if values.ndim == 1 else values
    if rows.ndim != 2 or len(rows) != num_edges or not rows.shape[1] or values.dtype.kind not in "biuf":
        raise DataError(
            f"{location} is {values.dtype.name} of shape {list(values.shape)}, expected a row of numbers "
            f"for each of {num_edges:,} edges: to train without edge features, run {remedy}"
        )
    with np.errstate(over="ignore"):
        features: Array = np.ascontiguousarray(rows, np.float32)
    wrong = ~np.isfinite(features).all(1)
    if wrong.any():
        index = int(wrong.argmax())
        raise DataError(
            f"{location}: row {index} has a value that is not a finite number: replace it, or to train "
            f"without edge features, run {remedy}"
        )
    return features


Triple = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class HeteroParts:
    """Contents of a heterogeneous graph of another library."""

    name: str
    """Name of the graph for messages."""
    counts: Mapping[str, int]
    """Number of vertices per type."""
    features: Mapping[str, Array]
    """Feature rows [n, F] of each type that has features."""
    labels: Mapping[str, Array]
    """Labels of each type that has labels, before conversion."""
    masks: Mapping[str, Mapping[str, Array]]
    """Masks of each type, by split."""
    edges: Mapping[Triple, tuple[Array, Array]]
    """Sources and destinations of each relation, numbered within their types."""
    weights: Mapping[Triple, Array]
    """Edge weights [e] float32 of each relation that has weights."""
    edge_features: Mapping[Triple, Array]
    """Edge features [e, d] float32 of each relation that has features."""
    labels_location: str
    """Expression by which the user accesses labels, with `{}` for the type, for messages."""
    mask_location: str
    """Expression by which the user accesses a mask, with `{}` for type and split, for messages."""
    times: Mapping[Triple, Array]
    """Edge times [e] int64 or float64 of each relation that has times."""

    __repr__ = short_repr


def build_hetero_dataset(parts: HeteroParts, scratch: Path | None = None) -> Dataset:
    """Build the dataset of a heterogeneous graph. Equal edges of a relation are merged, and self-loops are
    preserved.

    Labels and masks must belong to one vertex type. Labels are converted by `convert_targets`, and features
    other than float16 to float32. Raises DataError if something is missing or malformed.
    """
    name = parts.name
    for vertex_type in parts.counts:
        if reason := find_name_problem(vertex_type):
            raise DataError(f"{name}: the vertex type {vertex_type!r} {reason}: rename it")
    target = _target(parts)
    starts = np.concatenate([[0], np.cumsum(list(parts.counts.values()))]).astype(np.int64)
    types = GraphTypes(
        tuple(parts.counts), starts, tuple(Relation(*triple) for triple in parts.edges), target
    )
    masks: dict[str, Array] = {}
    count = parts.counts[target]
    for split in SPLITS:
        if not parts.masks.get(target):
            masks[f"{split}_mask"] = np.zeros(count, np.bool_)
            continue
        if split not in parts.masks[target]:
            raise DataError(
                f"{name}: {parts.mask_location.format(target, split)} is missing: set it to a bool for each "
                f"of the {parts.counts[target]:,} vertices"
            )
        masks[f"{split}_mask"] = np.ascontiguousarray(parts.masks[target][split])
    labels = parts.labels.get(target, np.full(count, -1, np.int8))
    if target in parts.labels and not parts.masks.get(target):
        warn_user(
            f"{name}: {parts.mask_location.format(target, 'train')} and other masks are missing, so vertices "
            "are in no split and only links can be predicted",
            DataWarning,
        )
    location = parts.labels_location.format(target)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2):
        raise DataError(
            f"{name}: {location} has shape {list(labels.shape)}, expected [V] or [V, K]: reshape it"
        )
    tables = {
        vertex_type: _table(name, vertex_type, rows, parts.counts[vertex_type])
        for vertex_type, rows in parts.features.items()
    }
    data, merged = assemble_dataset(
        name,
        HeteroDatasetParts(
            types,
            stream_edge_lists(name, types, parts.edges, parts.weights),
            tables,
            convert_targets(labels, name, location),
            masks,
            weighted=bool(parts.weights),
        ),
        scratch,
    )
    if parts.edge_features:
        data.arrays[EDGE_FEATURES] = _features_of_edges(parts, types, int(merged.sum()))
    if parts.times:
        data.arrays[EDGE_TIME] = _times_of_edges(parts, types, data.arrays)
    if merged.any():
        warn_user(describe_merged(name, types, merged, parts.weights), DataWarning)
    return data


def _times_of_edges(parts: HeteroParts, types: GraphTypes, arrays: Mapping[str, Array]) -> Array:
    """Return all edge times in the edge order of the dataset; unknown for relations without times."""
    listed_edges = []
    for number, (triple, ends) in enumerate(parts.edges.items()):
        if triple in parts.times:
            starts = [types.interval(triple[at])[0] for at in (0, 2)]
            pairs = np.stack([np.asarray(ends[i], np.int64) + starts[i] for i in (0, 1)], axis=1)
            listed_edges.append(TimedEdges(pairs, parts.times[triple], number))
    topology = Topology(arrays["indptr"], arrays["indices"], arrays[EDGE_TYPE])
    return order_edge_times(topology, listed_edges, np.result_type(*parts.times.values()))


def _features_of_edges(parts: HeteroParts, types: GraphTypes, num_merged: int) -> Array:
    """Return all edge features [E, d] in the edge order of the dataset; 0 for relations without features.

    Raises DataError if widths differ between relations, or if there are equal edges.
    """
    edge_features = parts.edge_features
    widths = {" ".join(triple): rows.shape[1] for triple, rows in edge_features.items()}
    if len(set(widths.values())) > 1:
        raise DataError(
            f"{parts.name}: edge features must have the same width in all relations, but the widths are "
            f"{join_names([f'{width} ({name})' for name, width in widths.items()])}: pad the narrower ones "
            "with 0"
        )
    if num_merged:
        raise DataError(
            f"{parts.name}: {num_merged:,} edges are duplicates within their relation, and only one edge's "
            "features can be kept: remove the duplicates"
        )
    width = next(iter(widths.values()))
    rows, keys = [], []
    for number, (triple, (sources, targets)) in enumerate(parts.edges.items()):
        count = len(targets)
        starts = [types.interval(triple[at])[0] for at in (0, 2)]
        ends = [np.asarray(part, np.int64) for part in (sources, targets)]
        keys.append(np.stack([ends[0] + starts[0], np.full(count, number), ends[1] + starts[1]]))
        rows.append(
            edge_features[triple] if triple in edge_features else np.zeros((count, width), np.float32)
        )
    # Rows are sorted by destination, relation and source.
    order = np.lexsort(np.concatenate(keys, 1))
    ordered: Array = np.concatenate(rows)[order]
    return ordered


def _target(parts: HeteroParts) -> str:
    """Return the vertex type that has labels."""
    labelled = list(parts.labels)
    if not labelled and not any(parts.masks.values()):
        # Without labels, only links can be predicted, so any type can be the target.
        return next(iter(parts.counts))
    if not labelled:
        example = parts.labels_location.format(next(iter(parts.counts), "TYPE"))
        raise DataError(f"{parts.name}: no vertex type has labels: set, for example, {example}")
    with_masks = [vertex_type for vertex_type in labelled if parts.masks.get(vertex_type)]
    if len(labelled) > 1 and len(with_masks) != 1:
        raise DataError(
            f"{parts.name}: the types {join_names(labelled)} have labels, but hyrt trains on the labels of "
            "one type: keep masks for only one of them"
        )
    return (with_masks or labelled)[0]


def _table(name: str, vertex_type: str, rows: Array, count: int) -> Dataset:
    shown = feature_table_name(name, vertex_type)
    if rows.ndim != 2 or len(rows) != count:
        raise DataError(
            f"{shown}: features have shape {list(rows.shape)}, expected [{count}, F]: reshape them"
        )
    if rows.dtype != np.float16:
        rows = rows.astype(np.float32, copy=False)
    return Dataset(shown, {}, FeatureRows.from_array(np.ascontiguousarray(rows)))
