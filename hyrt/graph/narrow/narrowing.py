"""Quantization of a graph's features."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import CHUNK
from hyrt.graph.graph import Graph
from hyrt.graph.narrow.narrow_features import NarrowFeatures, RoundedOnTheWay
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.narrow.rounding import Rounding, column_scales
from hyrt.graph.narrow.row_format import FLOAT16, MOST_CODE, ROW_FORMATS
from hyrt.graph.row_source import DenseFeatures, NarrowSource, RowSource, SparseSource
from hyrt.machine.workers import Workers, current_workers

STORED = "stored"


def narrowed(
    graph: Graph, rows: str, seed: int | None = None, scales: NDArray[np.float32] | None = None
) -> Graph:
    """Return the graph with feature rows in a format.

    Rows in memory are quantized once. Rows in files, which may exceed memory, are quantized whenever they are
    read.

    Parameters
    ----------
    graph
        The graph.
    rows
        The name of a format, or `stored` for the graph as it is.
    seed
        The seed of stochastic rounding to int8; None rounds to the nearest.
    scales
        [F] the scales of the columns of the graph that a model was trained on, for a format that has some;
        None to find those of this one. Values that their codes do not reach are not cut: all rows are then
        the same multiples of the scales, as float32.

    Raises
    ------
    DataError
        If the features are sparse, or a value cannot be written so.
    """
    features = graph.features
    if rows == STORED:
        return graph
    row_format = ROW_FORMATS[rows]
    if isinstance(features, SparseSource):
        raise DataError(
            f"{graph.name}: data.rows={rows} is for dense features, and these are sparse: omit it"
        )
    if isinstance(features, NarrowSource) and features.row_format == row_format:
        return graph
    workers, count = current_workers(), graph.num_vertices
    if row_format.scales != "column":
        scales = None
    elif scales is None:
        parts = (out for _, out in _blocks(features, count, workers))
        scales = column_scales(parts, features.width, graph.name)
    else:
        reach = (MOST_CODE + 0.5) * scales
        if any((np.abs(out) > reach).any() for _, out in _blocks(features, count, workers)):
            return graph.with_features(_beyond_codes(features, count, scales, workers))
    rounding = Rounding(row_format, seed, scales)
    if not is_in_memory(features):
        return graph.with_features(RoundedOnTheWay(features, rounding, graph.name))
    kept = NarrowRows.room(row_format, (count, features.width), scales)
    for ids, block in _blocks(features, count, workers):
        part = slice(int(ids[0]), int(ids[-1]) + 1)
        by_row = None if kept.row_scales is None else kept.row_scales[part]
        out = NarrowRows(row_format, kept.codes[part], by_row, scales)
        rounding.write(block, ids, out, graph.name, workers)
    if row_format == FLOAT16:
        return graph.with_features(DenseFeatures(kept.codes.view(np.float16)))
    return graph.with_features(NarrowFeatures(kept))


def _beyond_codes(
    features: RowSource, count: int, scales: NDArray[np.float32], workers: Workers
) -> DenseFeatures:
    """Round rows to multiples of the scales as float32, because codes cannot represent all values."""
    values = np.empty((count, features.width), np.float32)
    for ids, block in _blocks(features, count, workers):
        values[int(ids[0]) : int(ids[-1]) + 1] = np.rint(block / scales) * scales
    return DenseFeatures(values)


def is_in_memory(features: RowSource) -> bool:
    """Return whether all rows are in memory and not memory-mapped."""
    if not isinstance(features, DenseFeatures | NarrowFeatures):
        return False
    held: Any = features.values if isinstance(features, DenseFeatures) else features.kept.codes
    while isinstance(held, np.ndarray | memoryview):
        held = held.base if isinstance(held, np.ndarray) else held.obj
    return not isinstance(held, mmap.mmap)


def _blocks(
    features: RowSource, count: int, workers: Workers
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield all rows in blocks; each block is valid until the next iteration."""
    step = max(1, CHUNK // features.width)
    room = np.empty((min(step, count), features.width), np.float32)
    for start in range(0, count, step):
        ids = np.arange(start, min(start + step, count))
        out = room[: len(ids)]
        features.rows(ids, out, workers)
        yield ids, out
