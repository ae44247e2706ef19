"""Sorting and deduplication of the rows of a dataset's matrices, as required by the schema."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import Store, row_ranges
from hyrt.graph.formats.schema import EDGE_TIME, EDGE_TYPE, EDGE_WEIGHT, OF_EDGES, Dataset

Array = NDArray[Any]

RANGE_ENTRIES = 1 << 21
"""Number of entries that are sorted at once; a longer row is processed as one piece."""
ENTRY_BYTES = 64
"""Upper bound of the memory per entry, in bytes."""
_MATRICES = (("indptr", "indices", OF_EDGES), ("feat_indptr", "feat_indices", ("feat_values",)))
_ADDED_UP = (EDGE_WEIGHT, "feat_values")

POINTERS = tuple(pointer for pointer, _, _ in _MATRICES)


def in_row_order(data: Dataset, scratch: Path, *, sort: bool, unique: bool) -> Dataset:
    """Return the dataset with sorted or deduplicated rows in the topology and in sparse features.

    In a heterogeneous graph, rows are sorted by relation first, and only edges of one relation can be
    duplicates.

    Parameters
    ----------
    data
        A dataset that is valid except for the order of its rows. It is read in pieces and not changed.
    scratch
        Folder for the new arrays, which are memory-mapped.
    sort
        Sort each row. The sort is stable.
    unique
        Keep one of the equal neighbours in a row. Edge weights and values of sparse features are summed in
        order, and the earliest time is kept.

    Raises
    ------
    DataError
        If edges to be merged have types or features.
    """
    arrays = dict(data.arrays)
    is_hetero = data.tables is not None
    for pointer, columns, of_entries in _MATRICES:
        if pointer not in arrays:
            continue
        values = [key for key in of_entries if key in arrays]
        outputs = {
            key: Store(arrays[key].dtype, scratch / f"ordered-{key}.npy", arrays[key].shape[1:])
            for key in (columns, *values)
        }
        indptr = arrays[pointer]
        counts = np.zeros(len(indptr), np.int64)
        with ExitStack() as files:
            for store in outputs.values():
                files.callback(store.close)
            for starts, entries, first in row_ranges(indptr, arrays[columns], RANGE_ENTRIES):
                lengths = np.diff(starts)
                rows = np.repeat(np.arange(len(lengths)), lengths)
                entry_values = {key: arrays[key][starts[0] : starts[-1]] for key in values}
                # Sort key that precedes the column in a row.
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
            name: in_row_order(table, _folder(scratch, number), sort=sort, unique=unique)
            for number, (name, table) in enumerate(tables.items())
        }
    # The symmetry of unsorted rows was not determined correctly; compute it again when needed.
    return replace(data, arrays=arrays, symmetric=None, tables=tables)


def _folder(scratch: Path, number: int) -> Path:
    """Create a folder for the feature files of one vertex type."""
    folder = scratch / f"ordered-{number}"
    folder.mkdir()
    return folder


def _merge_values(
    name: str, key: str, values: Array, is_first: NDArray[np.bool_], equal_keys: tuple[str, ...]
) -> Array:
    """Return the values of the kept entries, each of which represents the equal entries after it.

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
            f"{name}: key '{key}': several edges go from one vertex to another, and --unique cannot make one "
            "of theirs: write one edge for each pair of vertices"
        )
    added: Array = np.add.reduceat(values, np.flatnonzero(is_first))
    return added
