"""Assembly of heterogeneous datasets from the edges of each relation and feature tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import reject
from hyrt.graph.csr import Store, row_ranges
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_TYPE, EDGE_WEIGHT, Dataset
from hyrt.graph.labels.label_kind import label_kind
from hyrt.graph.links.edge_times import TimedEdges, times_in_rows
from hyrt.graph.topology import Topology
from hyrt.graph.typed.graph_types import GraphTypes
from hyrt.graph.typed.reversed_relations import reversed_edges, reversed_numbers, with_reversed
from hyrt.graph.typed.typed_csr import TypedEdges, TypedPiece, build_typed_csr, entry_bytes, relation_dtype
from hyrt.graph.typed.typed_keys import RELATIONS, arrays_of_types, types_of_arrays
from hyrt.quantities import one_line

Array = NDArray[Any]

_PIECE = 1 << 22
BUILD_ENTRIES = 100_000_000
"""Number of unweighted entries that are built at once if they are written to a file: 1.3 GB."""


def build_bytes(num_entries: int, *, weighted: bool) -> int:
    """Return the maximum memory of the entries that are built at once if they are written to a file."""
    return min(entry_bytes(weighted=False) * BUILD_ENTRIES, entry_bytes(weighted) * num_entries)


@dataclass(frozen=True, slots=True)
class TypedParts:
    """Parts of a heterogeneous dataset."""

    types: GraphTypes
    """Vertex types and relations."""
    edges: TypedEdges
    """Stream of the edges of all relations."""
    tables: Mapping[str, Dataset]
    """Feature-only datasets of the types that have features."""
    labels: Array
    """[n] or [n, K] labels of the target type."""
    masks: Mapping[str, Array]
    """`train_mask`, `val_mask` and `test_mask`, and further ones: bool [n] or [n, K], of the same."""
    weighted: bool = False
    """Whether edges of some relation have weights; those of the others then have 1."""

    __repr__ = one_line


def typed_dataset(name: str, parts: TypedParts, scratch: Path | None) -> tuple[Dataset, int]:
    """Assemble a heterogeneous dataset.

    Parameters
    ----------
    name
        The dataset's, for messages.
    parts
        What it is made of, which need not be checked but for the lengths of its tables.
    scratch
        A folder for the edges, where they should not be in memory.

    Returns
    -------
    The dataset, and how many of the edges were left out because they equal others of their relation.

    Raises
    ------
    DataError
        If an edge has an end that is no vertex of its type, or labels or masks are not one for each vertex of
        the target type.
    """
    types = parts.types
    low, high = types.interval(types.target)
    for key, array in (("labels", parts.labels), *parts.masks.items()):
        if len(array) != high - low:
            raise reject(
                name,
                key,
                f"has {len(array):,} rows for {high - low:,} vertices of type {types.target!r}: give "
                "one each",
            )
    topology, given = _topology(name, types, parts.edges, scratch, weighted=parts.weighted)
    arrays = arrays_of_types(types) | topology
    arrays["labels"] = labels_of_all(parts.labels, types)
    arrays |= {key: mask_of_all(mask, types) for key, mask in parts.masks.items()}
    return Dataset(name, arrays, None, tables=dict(parts.tables)), given - len(topology["indices"])


def _topology(
    name: str, types: GraphTypes, edges: TypedEdges, scratch: Path | None, *, weighted: bool
) -> tuple[dict[str, Array], int]:
    indices = Store(
        np.dtype(np.int32 if types.num_vertices < 2**31 else np.int64), scratch and scratch / "indices.npy"
    )
    numbers = Store(relation_dtype(len(types.relations)), scratch and scratch / "edge_type.npy")
    values = Store(np.dtype(np.float32), scratch and scratch / "edge_weight.npy") if weighted else None

    def emit(sources: Array, relations: Array, weights: Array | None) -> None:
        indices.append(sources)
        numbers.append(relations)
        if values is not None and weights is not None:
            values.append(weights)

    at_once = BUILD_ENTRIES * entry_bytes(weighted=False) // entry_bytes(weighted)
    bound = 1 << 62 if scratch is None else at_once
    indptr, given = build_typed_csr(
        edges, types, emit=emit, source=name, weighted=weighted, range_entries=bound
    )
    arrays = {"indptr": indptr, "indices": indices.finish(), EDGE_TYPE: numbers.finish()}
    if values is not None:
        arrays[EDGE_WEIGHT] = values.finish()
    return arrays, int(given.sum())


def labels_of_all(labels: Array, types: GraphTypes) -> Array:
    """Labels [n] or [n, K] of the target type as those of all vertices: elsewhere nothing is known."""
    if len(types.vertex_types) == 1:
        return labels
    low, high = types.interval(types.target)
    unknown = np.nan if label_kind(labels) == "numbers" else -1
    dtype = np.dtype(np.int8) if labels.dtype.kind in "bu" and labels.ndim == 2 else labels.dtype
    placed = np.full((types.num_vertices, *labels.shape[1:]), unknown, dtype)
    placed[low:high] = labels
    return placed


def mask_of_all(mask: Array, types: GraphTypes) -> Array:
    """Expand a mask [n] or [n, K] of the target type to all vertices, with False elsewhere."""
    if len(types.vertex_types) == 1:
        return mask
    low, high = types.interval(types.target)
    placed = np.zeros((types.num_vertices, *mask.shape[1:]), np.bool_)
    placed[low:high] = mask
    return placed


def typed_edges(arrays: Mapping[str, Array], types: GraphTypes) -> TypedEdges:
    """Stream the edges of a dataset by relation, with their weights."""
    first_sources = types.starts[types.relation_sources].tolist()
    first_targets = types.starts[types.relation_destinations].tolist()
    weights = arrays.get(EDGE_WEIGHT)

    def stream() -> Iterator[TypedPiece]:
        for starts, entries, first in row_ranges(arrays["indptr"], arrays["indices"], _PIECE):
            rows = np.repeat(np.arange(first, first + len(starts) - 1), np.diff(starts))
            numbers = arrays[EDGE_TYPE][starts[0] : starts[-1]]
            for relation in np.unique(numbers).tolist():
                chosen = np.flatnonzero(numbers == relation)
                yield TypedPiece(
                    relation,
                    entries[chosen] - first_sources[relation],
                    rows[chosen] - first_targets[relation],
                    None if weights is None else weights[starts[0] : starts[-1]][chosen],
                )

    return stream


def with_reverse(data: Dataset, scratch: Path) -> Dataset:
    """Add reverse relations to a heterogeneous dataset; see `with_reversed`.

    Parameters
    ----------
    data
        A checked dataset, which is not changed.
    scratch
        A folder for the new edges, which are mapped.

    Raises
    ------
    DataError
        If the dataset has no types, or its edges have features.
    """
    types = types_of_arrays(data.arrays)
    if types is None:
        raise DataError(
            f"{data.name}: --reverse is for graphs with types of vertices, and there is no key "
            f"'{RELATIONS}': omit it"
        )
    if EDGE_FEATURES in data.arrays:
        raise reject(
            data.name, EDGE_FEATURES, "has no values for the reversed edges: omit --reverse, or this key"
        )
    wider = with_reversed(types)
    edges = reversed_edges(typed_edges(data.arrays, types), types, wider)
    topology, _ = _topology(data.name, wider, edges, scratch, weighted=EDGE_WEIGHT in data.arrays)
    if EDGE_TIME in data.arrays:
        topology[EDGE_TIME] = _times_with_reverse(data.arrays, types, wider, topology, scratch)
    return replace(data, arrays=data.arrays | arrays_of_types(wider) | topology, symmetric=None)


def _times_with_reverse(
    arrays: Mapping[str, Array],
    types: GraphTypes,
    wider: GraphTypes,
    reversed_arrays: Mapping[str, Array],
    scratch: Path,
) -> Array:
    """Return the edge times after adding reverse edges, which have the times of their originals."""
    times, numbers = arrays[EDGE_TIME], arrays[EDGE_TYPE]
    back = reversed_numbers(types, wider)

    def edges() -> Iterator[TimedEdges]:
        for starts, entries, first in row_ranges(arrays["indptr"], arrays["indices"], _PIECE):
            part = slice(starts[0], starts[-1])
            rows = np.repeat(np.arange(first, first + len(starts) - 1), np.diff(starts))
            pairs = np.stack([entries, rows], axis=1)
            for relation in np.unique(numbers[part]).tolist():
                chosen = numbers[part] == relation
                yield TimedEdges(pairs[chosen], times[part][chosen], relation)
                if (other := back[relation]) is not None:
                    yield TimedEdges(pairs[chosen][:, ::-1], times[part][chosen], other)

    topology = Topology(reversed_arrays["indptr"], reversed_arrays["indices"], reversed_arrays[EDGE_TYPE])
    dtype = np.dtype(np.float64 if times.dtype.kind == "f" else np.int64)
    return times_in_rows(topology, edges(), dtype, scratch / "edge_time.npy")
