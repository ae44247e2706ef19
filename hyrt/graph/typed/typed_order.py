"""Renumbering of the edges of a heterogeneous graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.csr import Store, ranges
from hyrt.graph.typed import typed_kernels
from hyrt.machine.workers import Workers

Array = NDArray[Any]

ENTRIES = 1 << 23
"""Number of edges that are renumbered at once, at 14 bytes each; a longer row is one piece."""
_ROWS = 1 << 12


def renumbered_runs(
    arrays: Mapping[str, Array],
    order: Array,
    starts: NDArray[np.int64],
    scratch: Path,
    workers: Workers,
) -> dict[str, Array]:
    """Return the sources and relations of all edges in the new order, sorted by relation and source.

    Parameters
    ----------
    arrays
        A checked typed dataset by key of the schema, whose edges have no weights or features.
    order
        [V] the vertices in their new order.
    starts
        [V+1] where the rows start in it.
    scratch
        A folder for the new arrays, which are mapped.
    workers
        The threads that share the work.

    Returns
    -------
    `indices` and `edge_type`.
    """
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=order.dtype)
    indptr, indices, numbers = (arrays[key] for key in ("indptr", "indices", "edge_type"))
    stores = {
        key: Store(arrays[key].dtype, scratch / f"renumbered-{key}.npy") for key in ("indices", "edge_type")
    }

    def rows(low: int, high: int) -> tuple[Array, Array]:
        local, chosen = starts[low : high + 1] - starts[low], order[low:high]
        keys = np.empty(int(local[-1]), np.int64)
        sources, relations = (np.empty(len(keys), store_of.dtype) for store_of in (indices, numbers))

        def work(first: int, last: int) -> None:
            typed_kernels.renumber_keys(
                indptr, indices, numbers, chosen, places, len(order), local, first, last, keys
            )
            a, b = int(local[first]), int(local[last])
            typed_kernels.decode(keys, len(order), a, b, sources, relations)

        workers.run(work, high - low, _ROWS)
        return sources, relations

    for low, high in ranges(starts, ENTRIES):
        sources, relations = rows(low, high)
        stores["indices"].append(sources)
        stores["edge_type"].append(relations)
    return {key: store.finish() for key, store in stores.items()}
