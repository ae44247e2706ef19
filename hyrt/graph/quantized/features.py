"""Row sources of quantized features, and the quantization of a graph's features."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.check import CHUNK
from hyrt.graph.graph import Graph
from hyrt.graph.quantized.row_format import FLOAT16, MAX_CODE, ROW_FORMATS, RowFormat
from hyrt.graph.quantized.rows import QuantizedRows, Quantizer, compute_column_scales
from hyrt.graph.row_source import DenseFeatures, QuantizedRowSource, RowSource, SparseSource
from hyrt.runtime.workers import Workers, current_workers


@dataclass(frozen=True, slots=True)
class QuantizedFeatures:
    """Row source of quantized rows that are in memory or memory-mapped."""

    stored: QuantizedRows
    """Rows of all vertices."""

    __repr__ = short_repr

    @property
    def width(self) -> int:
        return int(self.stored.codes.shape[1])

    @property
    def value_bytes(self) -> int:
        return self.stored.codes.itemsize

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    @property
    def matrix(self) -> NDArray[Any] | None:
        return self.stored.matrix

    @property
    def row_format(self) -> RowFormat:
        return self.stored.format

    @property
    def column_scales(self) -> NDArray[np.float32] | None:
        return self.stored.column_scales

    @property
    def all_rows(self) -> QuantizedRows:
        return self.stored

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        self.stored.dequantize(ids, out, workers)

    def quantized_rows(self, ids: NDArray[Any], out: QuantizedRows, workers: Workers) -> None:
        self.stored.gather(ids, out, workers)


@dataclass(frozen=True, slots=True)
class OnTheFlyQuantizedFeatures:
    """Row source that quantizes the rows of another source whenever they are read.

    `rows` returns dequantized values, so that results do not depend on whether a reader calls `rows` or
    `quantized_rows`.
    """

    source: RowSource
    quantizer: Quantizer
    name: str
    """Name of the dataset for messages."""

    __repr__ = short_repr

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def value_bytes(self) -> int:
        return self.source.value_bytes

    @property
    def nbytes(self) -> int:
        return self.source.nbytes

    @property
    def matrix(self) -> None:
        return None

    @property
    def row_format(self) -> RowFormat:
        return self.quantizer.format

    @property
    def column_scales(self) -> NDArray[np.float32] | None:
        return self.quantizer.column_scales

    @property
    def all_rows(self) -> None:
        return None

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        self.source.rows(ids, out, workers)
        rounded = QuantizedRows.allocate(self.row_format, (len(ids), self.width), self.column_scales)
        self.quantizer.quantize_into(out, ids, rounded, self.name, workers)
        rounded.dequantize(None, out, workers)

    def quantized_rows(self, ids: NDArray[Any], out: QuantizedRows, workers: Workers) -> None:
        whole = np.empty((len(ids), self.width), np.float32)
        self.source.rows(ids, whole, workers)
        self.quantizer.quantize_into(whole, ids, out, self.name, workers)


STORED = "stored"


def quantize_graph(
    graph: Graph, format_name: str, seed: int | None = None, scales: NDArray[np.float32] | None = None
) -> Graph:
    """Return the graph with feature rows in a format; for the format `stored`, return it unchanged.

    Rows in memory are quantized once. Rows in files, which may exceed memory, are quantized whenever they are
    read.

    With a `seed`, rounding to int8 is stochastic; None rounds to nearest. `scales` [F] are the column scales
    with which a model was trained; by default, scales are computed from this graph. If values exceed the
    range of given scales, they are not clipped: all rows become float32 multiples of the scales. Raises
    DataError if the features are sparse, or a value cannot be represented.
    """
    features = graph.features
    if format_name == STORED:
        return graph
    row_format = ROW_FORMATS[format_name]
    if isinstance(features, SparseSource):
        raise DataError(
            f"{graph.name}: data.feature_dtype={format_name} supports only dense features, but these "
            "are sparse: remove data.feature_dtype"
        )
    if isinstance(features, QuantizedRowSource) and features.row_format == row_format:
        return graph
    workers, count = current_workers(), graph.num_vertices
    if row_format.scales != "column":
        scales = None
    elif scales is None:
        parts = (out for _, out in _blocks(features, count, workers))
        scales = compute_column_scales(parts, features.width, graph.name)
    else:
        reach = (MAX_CODE + 0.5) * scales
        if any((np.abs(out) > reach).any() for _, out in _blocks(features, count, workers)):
            return graph.with_features(_beyond_codes(features, count, scales, workers))
    rounding = Quantizer(row_format, seed, scales)
    if not is_in_memory(features):
        return graph.with_features(OnTheFlyQuantizedFeatures(features, rounding, graph.name))
    quantized = QuantizedRows.allocate(row_format, (count, features.width), scales)
    for ids, block in _blocks(features, count, workers):
        part = slice(int(ids[0]), int(ids[-1]) + 1)
        by_row = None if quantized.row_scales is None else quantized.row_scales[part]
        out = QuantizedRows(row_format, quantized.codes[part], by_row, scales)
        rounding.quantize_into(block, ids, out, graph.name, workers)
    if row_format == FLOAT16:
        return graph.with_features(DenseFeatures(quantized.codes.view(np.float16)))
    return graph.with_features(QuantizedFeatures(quantized))


def _beyond_codes(
    features: RowSource, count: int, scales: NDArray[np.float32], workers: Workers
) -> DenseFeatures:
    """Round rows to float32 multiples of the scales, because codes cannot represent all values."""
    values = np.empty((count, features.width), np.float32)
    for ids, block in _blocks(features, count, workers):
        values[int(ids[0]) : int(ids[-1]) + 1] = np.rint(block / scales) * scales
    return DenseFeatures(values)


def is_in_memory(features: RowSource) -> bool:
    """Return whether all rows are in memory and not in memory-mapped files."""
    if not isinstance(features, DenseFeatures | QuantizedFeatures):
        return False
    held: Any = features.values if isinstance(features, DenseFeatures) else features.stored.codes
    while isinstance(held, np.ndarray | memoryview):
        held = held.base if isinstance(held, np.ndarray) else held.obj
    return not isinstance(held, mmap.mmap)


def _blocks(
    features: RowSource, count: int, workers: Workers
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield all rows in blocks, each valid until the next iteration."""
    step = max(1, CHUNK // features.width)
    buffer = np.empty((min(step, count), features.width), np.float32)
    for start in range(0, count, step):
        ids = np.arange(start, min(start + step, count))
        out = buffer[: len(ids)]
        features.rows(ids, out, workers)
        yield ids, out
