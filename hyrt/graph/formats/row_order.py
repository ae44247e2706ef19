"""Bringing the rows of a dataset's matrices into the schema's order: sorted, and every entry once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.csr import Store, row_ranges
from hyrt.graph.formats.schema import Dataset, check_no_types

Array = NDArray[Any]

RANGE_ENTRIES = 1 << 21
"""Entries put in order at once; a longer row still is one piece."""
ENTRY_BYTES = 64
"""Memory that each of them takes at most."""
_MATRICES = (("indptr", "indices", None), ("feat_indptr", "feat_indices", "feat_values"))

POINTERS = tuple(pointer for pointer, _, _ in _MATRICES)


def in_row_order(data: Dataset, scratch: Path, *, sort: bool, unique: bool) -> Dataset:
    """A dataset whose rows, of the topology and of sparse features, are in order.

    Parameters
    ----------
    data
        A dataset that is legal but for the order of its rows; it is read in pieces and not changed.
    scratch
        A folder for the new arrays, which are mapped.
    sort
        Sort each row. Entries of equal columns stay in their order.
    unique
        Keep one of the equal neighbours in a row; values of sparse features are added up, in order.
    """
    check_no_types(data, "--sort and --unique")
    arrays = dict(data.arrays)
    for pointer, columns, values in _MATRICES:
        if pointer not in arrays:
            continue
        outputs = {
            key: Store(arrays[key].dtype, scratch / f"ordered-{key}.npy") for key in (columns, values) if key
        }
        indptr = arrays[pointer]
        counts = np.zeros(len(indptr), np.int64)
        for starts, entries, first in row_ranges(indptr, arrays[columns], RANGE_ENTRIES):
            lengths = np.diff(starts)
            rows = np.repeat(np.arange(len(lengths)), lengths)
            along = None if values is None else arrays[values][starts[0] : starts[-1]]
            if sort:
                order = np.lexsort((entries, rows))
                entries, along = entries[order], None if along is None else along[order]
            if unique and len(entries):
                kept = np.append(True, (np.diff(rows) != 0) | (entries[1:] != entries[:-1]))
                along = None if along is None else np.add.reduceat(along, np.flatnonzero(kept))
                rows, entries = rows[kept], entries[kept]
            counts[first + 1 : first + 1 + len(lengths)] = np.bincount(rows, minlength=len(lengths))
            outputs[columns].append(entries)
            if values is not None and along is not None:
                outputs[values].append(along)
        arrays[pointer] = np.cumsum(counts)
        arrays |= {key: store.finish() for key, store in outputs.items()}
    # Rows that are not sorted are taken for a directed graph's.
    return replace(data, arrays=arrays, symmetric=None)
