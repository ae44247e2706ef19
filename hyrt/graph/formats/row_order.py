"""Bringing the rows of a dataset's matrices into the schema's order: sorted, and every entry once."""

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
"""Entries put in order at once; a longer row still is one piece."""
ENTRY_BYTES = 64
"""Memory that each of them takes at most."""
_MATRICES = (("indptr", "indices", OF_EDGES), ("feat_indptr", "feat_indices", ("feat_values",)))
_ADDED_UP = (EDGE_WEIGHT, "feat_values")

POINTERS = tuple(pointer for pointer, _, _ in _MATRICES)


def in_row_order(data: Dataset, scratch: Path, *, sort: bool, unique: bool) -> Dataset:
    """A dataset whose rows, of the topology and of sparse features, are in order.

    In a typed graph, rows are sorted by relation first, and only edges of one relation can be equal.

    Parameters
    ----------
    data
        A dataset that is legal but for the order of its rows; it is read in pieces and not changed.
    scratch
        A folder for the new arrays, which are mapped.
    sort
        Sort each row. Entries of equal columns stay in their order.
    unique
        Keep one of the equal neighbours in a row; weights of edges and values of sparse features are added
        up, in order, and the earliest time counts.

    Raises
    ------
    DataError
        If equal edges, of which one is to be kept, have types or features.
    """
    arrays = dict(data.arrays)
    typed = data.tables is not None
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
                along = {key: arrays[key][starts[0] : starts[-1]] for key in values}
                # What comes before the column in the order of a row.
                relations = (along[EDGE_TYPE],) if typed and EDGE_TYPE in along else ()
                if sort:
                    order = np.lexsort((entries, *relations, rows))
                    entries, along = entries[order], {key: part[order] for key, part in along.items()}
                if unique and len(entries):
                    differs = (np.diff(rows) != 0) | (entries[1:] != entries[:-1])
                    if relations:
                        differs |= along[EDGE_TYPE][1:] != along[EDGE_TYPE][:-1]
                    kept = np.append(True, differs)
                    alike = (EDGE_TYPE,) if typed else ()
                    along = {key: _of_kept(data.name, key, part, kept, alike) for key, part in along.items()}
                    rows, entries = rows[kept], entries[kept]
                counts[first + 1 : first + 1 + len(lengths)] = np.bincount(rows, minlength=len(lengths))
                for key, part in (along | {columns: entries}).items():
                    outputs[key].append(part)
        arrays[pointer] = np.cumsum(counts)
        arrays |= {key: store.finish() for key, store in outputs.items()}
    tables = data.tables
    if tables is not None:
        tables = {
            name: in_row_order(table, _folder(scratch, number), sort=sort, unique=unique)
            for number, (name, table) in enumerate(tables.items())
        }
    # Rows that are not sorted are taken for a directed graph's.
    return replace(data, arrays=arrays, symmetric=None, tables=tables)


def _folder(scratch: Path, number: int) -> Path:
    """A folder for the files of one type's features."""
    folder = scratch / f"ordered-{number}"
    folder.mkdir()
    return folder


def _of_kept(name: str, key: str, values: Array, kept: NDArray[np.bool_], alike: tuple[str, ...]) -> Array:
    """The values of the entries that are kept, each of which stands for the equal ones after it, too.

    `alike` are the keys whose values are equal in equal entries.
    """
    if kept.all():
        return values
    if key in alike:
        return values[kept]
    if key == EDGE_TIME:
        # What is not known may be nan.
        with np.errstate(invalid="ignore"):
            earliest: Array = np.minimum.reduceat(values, np.flatnonzero(kept))
        return earliest
    if key not in _ADDED_UP:
        raise DataError(
            f"{name}: key '{key}': several edges go from one vertex to another, and --unique cannot make one "
            "of theirs: write one edge for each pair of vertices"
        )
    added: Array = np.add.reduceat(values, np.flatnonzero(kept))
    return added
