"""Sorting and deduplication of a dataset's rows, and vertex orders that improve memory locality."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, join_names
from hyrt.graph import kernels
from hyrt.graph.csr import ArrayBuilder, iter_ranges, iter_row_ranges
from hyrt.graph.formats.npy import NpyWriter, map_npy, rows_per_chunk
from hyrt.graph.formats.schema import (
    EDGE_FEATURES,
    EDGE_TIME,
    EDGE_TYPE,
    EDGE_VALUE_KEYS,
    EDGE_WEIGHT,
    SPARSE_KEYS,
    VERTEX_IDS,
    Dataset,
    FeatureRows,
)
from hyrt.graph.hetero.csr import renumber_hetero_edges
from hyrt.graph.hetero.graph_types import TYPE_KEYS, types_from_arrays
from hyrt.graph.row_source import SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers

Array = NDArray[Any]

RANGE_ENTRIES = 1 << 21
"""Number of entries to sort at once. A longer row is sorted at once too."""
ENTRY_BYTES = 64
"""Upper bound of the memory per entry in bytes."""
_MATRICES = (("indptr", "indices", EDGE_VALUE_KEYS), ("feat_indptr", "feat_indices", ("feat_values",)))
_ADDED_UP = (EDGE_WEIGHT, "feat_values")

POINTERS = tuple(pointer for pointer, _, _ in _MATRICES)


def order_rows(data: Dataset, scratch: Path, *, sort: bool, unique: bool) -> Dataset:
    """Return the dataset with sorted or deduplicated rows of the topology and of sparse features.

    `sort` sorts each row stably, in a heterogeneous graph by relation first. `unique` merges equal neighbours
    (of one relation) in a row: edge weights and values of sparse features are summed in order, and the
    earliest time is used. The new arrays are memory-mapped files in `scratch`.

    The dataset must be valid except for the order of rows. Raises DataError if edges to be merged have types
    or features.
    """
    arrays = dict(data.arrays)
    is_hetero = data.tables is not None
    for pointer, columns, of_entries in _MATRICES:
        if pointer not in arrays:
            continue
        values = [key for key in of_entries if key in arrays]
        outputs = {
            key: ArrayBuilder(arrays[key].dtype, scratch / f"ordered-{key}.npy", arrays[key].shape[1:])
            for key in (columns, *values)
        }
        indptr = arrays[pointer]
        counts = np.zeros(len(indptr), np.int64)
        with ExitStack() as files:
            for store in outputs.values():
                files.callback(store.close)
            for starts, entries, first in iter_row_ranges(indptr, arrays[columns], RANGE_ENTRIES):
                lengths = np.diff(starts)
                rows = np.repeat(np.arange(len(lengths)), lengths)
                entry_values = {key: arrays[key][starts[0] : starts[-1]] for key in values}
                # First sort key of a row, before the column.
                relations = (entry_values[EDGE_TYPE],) if is_hetero and EDGE_TYPE in entry_values else ()
                if sort:
                    order = np.lexsort((entries, *relations, rows))
                    entries, entry_values = (
                        entries[order],
                        {key: part[order] for key, part in entry_values.items()},
                    )
                if unique and len(entries):
                    differs = (np.diff(rows) != 0) | (entries[1:] != entries[:-1])
                    if relations:
                        differs |= entry_values[EDGE_TYPE][1:] != entry_values[EDGE_TYPE][:-1]
                    is_first = np.append(True, differs)
                    equal_keys = (EDGE_TYPE,) if is_hetero else ()
                    entry_values = {
                        key: _merge_values(data.name, key, part, is_first, equal_keys)
                        for key, part in entry_values.items()
                    }
                    rows, entries = rows[is_first], entries[is_first]
                counts[first + 1 : first + 1 + len(lengths)] = np.bincount(rows, minlength=len(lengths))
                for key, part in (entry_values | {columns: entries}).items():
                    outputs[key].append(part)
        arrays[pointer] = np.cumsum(counts)
        arrays |= {key: store.finish() for key, store in outputs.items()}
    tables = data.tables
    if tables is not None:
        tables = {
            name: order_rows(table, _folder(scratch, number), sort=sort, unique=unique)
            for number, (name, table) in enumerate(tables.items())
        }
    # `symmetric` is unreliable for unsorted rows, so clear it.
    return replace(data, arrays=arrays, symmetric=None, tables=tables)


def _folder(scratch: Path, number: int) -> Path:
    """Create a folder for the feature files of a vertex type."""
    folder = scratch / f"ordered-{number}"
    folder.mkdir()
    return folder


def _merge_values(
    name: str, key: str, values: Array, is_first: NDArray[np.bool_], equal_keys: tuple[str, ...]
) -> Array:
    """Return the value of each group of equal entries, the first of which is marked.

    `equal_keys` are the keys whose values agree in equal entries.
    """
    if is_first.all():
        return values
    if key in equal_keys:
        return values[is_first]
    if key == EDGE_TIME:
        # Unknown times may be NaN.
        with np.errstate(invalid="ignore"):
            earliest: Array = np.minimum.reduceat(values, np.flatnonzero(is_first))
        return earliest
    if key not in _ADDED_UP:
        raise DataError(
            f"{name}: key '{key}' has values for parallel edges, which --unique cannot merge: write one "
            "edge for each pair of vertices"
        )
    added: Array = np.add.reduceat(values, np.flatnonzero(is_first))
    return added


ENTRIES = 1 << 24
"""Number of row entries to renumber at once. A longer row is renumbered at once too."""
_WITH_VALUES = 1 << 21
"""`ENTRIES` for edges with values, which is smaller because they need several arrays."""
_ROWS = 1 << 12


def _by_degree(topology: Topology) -> Array:
    return np.argsort(-_num_gathered(topology), kind="stable")


def _by_community(topology: Topology) -> Array:
    from sknetwork.clustering import Louvain

    # Louvain sums weights in the dtype of the weights.
    communities = Louvain(random_state=0).fit_predict(_matrix(topology, np.dtype(np.float32)))
    return np.lexsort((-_num_gathered(topology), communities))


def _by_rcm(topology: Topology) -> Array:
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    matrix = _matrix(topology, np.dtype(np.bool_))
    return np.asarray(reverse_cuthill_mckee(matrix, symmetric_mode=topology.is_symmetric))


ORDERS: dict[str, tuple[Callable[[Topology], Array], str | None, int]] = {
    "community": (_by_community, "sknetwork", 64),
    "degree": (_by_degree, None, 0),
    "rcm": (_by_rcm, "scipy", 24),
}
"""Function that computes each order, package that it requires, and maximum memory per edge in bytes."""
_DISTRIBUTIONS = {"sknetwork": "scikit-network"}


def check_order(order_name: str) -> None:
    """Raise DataError if an order is unknown, or its package is not installed."""
    if order_name not in ORDERS:
        raise DataError(f"--order {order_name} is unknown: use {join_names(tuple(ORDERS), 'or')}")
    package = ORDERS[order_name][1]
    if package is not None and importlib.util.find_spec(package) is None:
        raise DataError(
            f'--order {order_name} needs {_DISTRIBUTIONS.get(package, package)}: pip install "hyrt[order]"'
        )


def order_bytes(data: Dataset, order_name: str) -> int:
    """Return an upper bound of the memory for finding an order and renumbering rows, in bytes."""
    indptr = data.arrays["indptr"]
    longest = int(np.diff(indptr).max(initial=0))
    return 64 * len(indptr) + ORDERS[order_name][2] * int(indptr[-1]) + 8 * (longest + ENTRIES)


def find_order(data: Dataset, order_name: str) -> Array:
    """Compute a deterministic vertex order [V] that stores rows close together if they are gathered together.

    `degree` sorts by decreasing out-degree, which is how often a row is gathered. `community` sorts by
    community (Louvain's method), then by degree. `rcm` is reverse Cuthill-McKee, which gives neighbours close
    numbers. In a heterogeneous graph, vertices are reordered only within their types.

    The dtype is int32 (int64 if V >= 2^31). Raises DataError if the order is unknown, its package is not
    installed, or the graph has too many edges for it.
    """
    check_order(order_name)
    topology = Topology(data.arrays["indptr"], data.arrays["indices"])
    dtype = np.int32 if topology.num_vertices < 2**31 else np.int64
    if not topology.num_edges:
        return np.arange(topology.num_vertices, dtype=dtype)
    types = types_from_arrays(data.arrays)
    find, package, _ = ORDERS[order_name]
    if package is not None and topology.num_edges >= 2**31:
        raise DataError(
            f"{data.name}: --order {order_name} supports fewer than 2^31 edges, but there are "
            f"{topology.num_edges:,}: use --order degree"
        )
    with Workers(available_cores(), "order") as workers, use_workers(workers):
        order = find(topology).astype(dtype, copy=False)
    # The sort is stable, so each type has the computed order.
    return order if types is None else order[np.argsort(types.vertex_type_indices(order), kind="stable")]


def reorder_vertices(data: Dataset, order: Array, scratch: Path) -> Dataset:
    """Return a dataset with its vertices in the order `order` [V]; `vertex_ids` has their original numbers.

    The new edges, sparse features, and dense features that were not mapped are memory-mapped files in
    `scratch`.
    """
    arrays = dict(data.arrays)
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=order.dtype)
    entries = {"indptr", "indices", *EDGE_VALUE_KEYS, *SPARSE_KEYS, *TYPE_KEYS}
    types = types_from_arrays(data.arrays)
    arrays |= {key: array[order] for key, array in data.arrays.items() if key not in entries}
    arrays[VERTEX_IDS] = data.arrays.get(VERTEX_IDS, np.arange(len(order), dtype=order.dtype))[order]
    with Workers(available_cores(), "order") as workers:
        if types is None:
            arrays["indptr"], arrays["indices"] = _renumbered(
                data.arrays["indptr"], data.arrays["indices"], order, places, scratch, workers
            )
            arrays |= _values_of_edges(data.arrays, order, places, scratch)
            taken = _features_taken(data, order, scratch, workers)
            return replace(data, arrays=arrays | taken.arrays, rows=taken.rows)
        arrays["indptr"] = starts = _starts(data.arrays["indptr"], order)
        if any(key in data.arrays for key in (EDGE_WEIGHT, EDGE_FEATURES, EDGE_TIME)):
            arrays |= _values_of_edges(data.arrays, order, places, scratch, is_hetero=True)
        else:
            arrays |= renumber_hetero_edges(data.arrays, order, starts, scratch, workers)
        tables: dict[str, Dataset] = {}
        for number, (name, table) in enumerate((data.tables or {}).items()):
            (folder := scratch / f"type-{number}").mkdir()
            low, high = types.interval(name)
            tables[name] = _features_taken(table, order[low:high] - low, folder, workers)
    return replace(data, arrays=arrays, tables=tables)


def _features_taken(data: Dataset, order: Array, scratch: Path, workers: Workers) -> Dataset:
    """Return a dataset that has only the features, in another order."""
    if data.rows is not None:
        return replace(data, arrays={}, rows=_taken(data.rows, order, scratch))
    taken = _sparse_taken(data.arrays, order, scratch, workers)
    values = (*taken, data.arrays[SPARSE_KEYS[3]])
    return replace(data, arrays=dict(zip(SPARSE_KEYS, values, strict=True)))


def _num_gathered(topology: Topology) -> NDArray[np.int64]:
    """Return how often the row of each vertex is gathered [V], which is its out-degree."""
    counts = np.zeros(topology.num_vertices, np.int64)
    # Count in pieces, because bincount converts its input to int64.
    for start in range(0, topology.num_edges, ENTRIES):
        counts += np.bincount(topology.indices[start : start + ENTRIES], minlength=topology.num_vertices)
    return counts


def _matrix(topology: Topology, dtype: np.dtype[Any]) -> Any:
    """Return the edges as a scipy CSR matrix with values 1."""
    from scipy.sparse import csr_matrix

    shape = (topology.num_vertices, topology.num_vertices)
    ones = np.ones(topology.num_edges, dtype)
    return csr_matrix((ones, topology.indices, topology.indptr), shape=shape)


def _renumbered(
    indptr: Array, indices: Array, order: Array, places: Array, scratch: Path, workers: Workers
) -> tuple[Array, Array]:
    starts = _starts(indptr, order)
    store = ArrayBuilder(indices.dtype, scratch / "renumbered-indices.npy")

    def rows(low: int, high: int) -> Array:
        local, chosen = starts[low : high + 1] - starts[low], order[low:high]
        out = np.empty(int(local[-1]), indices.dtype)

        def work(first: int, last: int) -> None:
            kernels.renumber_rows(indptr, indices, chosen, places, local, first, last, out)

        workers.run(work, high - low, _ROWS)
        return out

    for low, high in iter_ranges(starts, ENTRIES):
        store.append(rows(low, high))
    return starts, store.finish()


def _values_of_edges(
    arrays: dict[str, Array], order: Array, places: Array, scratch: Path, *, is_hetero: bool = False
) -> dict[str, Array]:
    """Return the types, weights, features and times of edges in the edge order of `_renumbered`.

    In a heterogeneous graph (`is_hetero`), rows are sorted by relation first, and the result also has the
    indices.
    """
    keys = [key for key in (*EDGE_VALUE_KEYS, *(["indices"] if is_hetero else [])) if key in arrays]
    if not keys:
        return {}
    indptr, starts = arrays["indptr"], _starts(arrays["indptr"], order)
    stores = {
        key: ArrayBuilder(arrays[key].dtype, scratch / f"renumbered-{key}.npy", arrays[key].shape[1:])
        for key in keys
    }
    for low, high in iter_ranges(starts, _WITH_VALUES):
        first = indptr[order[low:high]]
        lengths = np.diff(starts[low : high + 1])
        rows = np.repeat(np.arange(high - low), lengths)
        edges = (first - (starts[low:high] - starts[low]))[rows] + np.arange(len(rows))
        sources = places[arrays["indices"][edges]]
        relations = (arrays[EDGE_TYPE][edges],) if is_hetero else ()
        chosen = np.lexsort((sources, *relations, rows))
        for key, store in stores.items():
            store.append(sources[chosen] if key == "indices" else arrays[key][edges[chosen]])
    return {key: store.finish() for key, store in stores.items()}


def _sparse_taken(
    arrays: dict[str, Array], order: Array, scratch: Path, workers: Workers
) -> tuple[Array, Array, Array]:
    indptr, columns, values, shape = (arrays[key] for key in SPARSE_KEYS)
    rows = SparseFeatures(indptr, columns, values, int(shape[1]))
    starts = _starts(indptr, order)
    stores = tuple(ArrayBuilder(a.dtype, scratch / f"taken-{i}.npy") for i, a in enumerate((columns, values)))
    for low, high in iter_ranges(starts, ENTRIES):
        taken = rows.take(order[low:high], workers)
        stores[0].append(taken.columns)
        stores[1].append(taken.values)
    return starts, stores[0].finish(), stores[1].finish()


def _taken(rows: FeatureRows, order: Array, scratch: Path) -> FeatureRows:
    if rows.mapped:
        values = rows.whole()
    else:
        file = scratch / "rows.npy"
        with NpyWriter(file, rows.dtype, rows.shape[1:]) as writer:
            for block in rows.blocks():
                writer.append(block)
        values = map_npy(file)
    step = rows_per_chunk(rows.shape[1:], rows.dtype)

    def blocks() -> Iterator[Array]:
        for start in range(0, len(order), step):
            yield values[order[start : start + step]]

    return FeatureRows.from_blocks(rows.shape, rows.dtype, blocks)


def _starts(indptr: Array, order: Array) -> NDArray[np.int64]:
    """Return the row pointers of the reordered rows."""
    starts = np.zeros(len(indptr), np.int64)
    np.cumsum(np.diff(indptr)[order], out=starts[1:])
    return starts
