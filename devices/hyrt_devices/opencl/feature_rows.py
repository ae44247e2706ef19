"""Feature rows on OpenCL devices: quantized codes, the feature cache, and aggregation kernels over rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hyrt.graph.feature_cache import Rows
from hyrt.graph.quantized.row_format import BFLOAT16, FLOAT16, FLOAT32, INT8, INT8_COLUMNS, RowFormat
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl.programs import Programs, Tuning
from hyrt_devices.opencl.staged import CachedOnDevice, StagedBlock, StagedRows

_NUMBERS = {FLOAT32: 0, FLOAT16: 1, BFLOAT16: 2, INT8: 3, INT8_COLUMNS: 3}


def code_words(row_format: RowFormat) -> dict[str, int]:
    """Return the constants with which `codes.cl` is compiled for a row format."""
    return {
        "FORMAT": _NUMBERS[row_format],
        "ROW_SCALED": int(row_format.scales == "row"),
        "COLUMN_SCALED": int(row_format.scales == "column"),
    }


def vector_of(tuning: Tuning, width: int) -> int:
    """Return the vector width of kernels that copy rows."""
    return min(tuning.vector, 1 << (width.bit_length() - 1))


def widened(
    programs: Programs,
    tuning: Tuning,
    queue: Launcher,
    lease: Lease,
    rows: StagedRows,
    sizes: tuple[int, int],
) -> Any:
    """Return a buffer of `lease` with the rows as float32. `sizes` is (rows, columns)."""
    if not rows.format.is_quantized:
        return rows.codes
    count, width = sizes
    words = {"VEC": vector_of(tuning, width), "WIDTH": width, "ITEMS": tuning.items, "GRAIN": tuning.grain}
    kernel = programs.kernel("widen", "widen", {**words, **code_words(rows.format)})
    out = lease.floats(count, width)
    items = ceil_div(ceil_div(count, tuning.grain), tuning.items)
    queue.launch(
        kernel, (items,), (tuning.items,), rows.codes, rows.row_scales, rows.column_scales, out, count
    )
    return out


class DeviceFeatureCache:
    """Feature cache with `count` rows of frequently used vertices in device memory.

    `pieces` contains the rows as in `FeatureCacheDevice.keep_rows`. `queue` must be idle. Raises
    DeviceOutOfMemoryError, after freeing all memory, if the rows do not fit.
    """

    def __init__(self, memory: DeviceMemory, queue: Launcher, count: int, pieces: Iterable[Rows]) -> None:
        self.count = count
        self._lease = Lease(memory)
        self._rows: StagedRows | None = None
        try:
            start = 0
            for piece in pieces:
                self._write(queue, start, piece)
                start += len(piece.codes if isinstance(piece, QuantizedRows) else piece)
        except BaseException:
            queue.finish()
            self.release()
            raise

    def _write(self, queue: Launcher, start: int, piece: Rows) -> None:
        quantized = piece if isinstance(piece, QuantizedRows) else None
        codes = np.ascontiguousarray(piece.codes if isinstance(piece, QuantizedRows) else piece)
        if self._rows is None:
            row_format: RowFormat = FLOAT32 if quantized is None else quantized.format
            width = codes.shape[1]
            self._rows = StagedRows(
                self._lease.take(self.count * width * codes.itemsize, exact=True),
                row_format,
                self._lease.take(4 * self.count, exact=True) if row_format.scales == "row" else None,
            )
        queue.write(self._rows.codes, codes, blocking=True, offset=start * codes[:1].nbytes)
        if quantized is not None and quantized.row_scales is not None:
            queue.write(self._rows.row_scales, quantized.row_scales, blocking=True, offset=4 * start)
        # Discard the times of these copies, which are not reported.
        queue.taken()

    def joined(
        self,
        programs: Programs,
        tuning: Tuning,
        queue: Launcher,
        lease: Lease,
        inputs: CachedOnDevice,
        sizes: tuple[int, int],
    ) -> StagedRows:
        """Combine cached and transferred rows to the float32 input rows of a mini-batch.

        `inputs` contains the slots of all rows, and the rows that were transferred. `sizes` is (rows,
        columns).
        """
        cached, sent, (count, width) = self._rows, inputs.sent, sizes
        assert cached is not None
        words = {
            "VEC": vector_of(tuning, width),
            "WIDTH": width,
            "ITEMS": tuning.items,
            "GRAIN": tuning.grain,
        }
        kernel = programs.kernel("join", "join", {**words, **code_words(cached.format)})
        out = lease.floats(count, width)
        items = ceil_div(ceil_div(count, tuning.grain), tuning.items)
        queue.launch(
            kernel,
            (items,),
            (tuning.items,),
            inputs.places,
            *(cached.codes, cached.row_scales, sent.codes, sent.row_scales, sent.column_scales, out, count),
        )
        return StagedRows(out)

    def release(self) -> None:
        """Release the memory. Idempotent."""
        self._rows = None
        self._lease.release()


class AggregationKernels:
    """Kernels for weighted sums over a block and for their gradients, with source rows of `width` columns.

    Kernels are compiled on first use, when it is known whether there are edge weights. If `masked`, source
    rows are the output of a ReLU, whose gradient is applied too.
    """

    def __init__(
        self, programs: Programs, tuning: Tuning, aggregation: Aggregation, width: int, *, masked: bool
    ) -> None:
        self._programs = programs
        self._tuning = tuning
        self._masked = masked
        concat = aggregation.self_path == "concat"
        # Use the largest power of two up to the width of a row.
        vector = min(tuning.vector, 1 << (width.bit_length() - 1))
        vectors = ceil_div(width, vector)
        self._constants: dict[str, int | str] = {
            "WIDTH": width,
            "STRIDE": aggregation.width(width),
            "SUM_AT": width if concat else 0,
            "SELF_AT": 0 if concat else -1,
            "VEC": vector,
            "VECTORS": vectors,
            "UNROLL": min(tuning.unroll, ceil_div(vectors, tuning.lanes)),
            "LANES": tuning.lanes,
            "GRAIN": tuning.grain,
            "HAS_SOURCE": int(aggregation.reduce == "gcn"),
            "HAS_SELF": int(aggregation.self_path == "add"),
        }
        self._kernels: dict[tuple[str, bool, RowFormat], Any] = {}

    def _kernel(self, name: str, weighted: bool, row_format: RowFormat = FLOAT32) -> Any:
        key = name, weighted, row_format
        if key not in self._kernels:
            masked = self._masked and name == "aggregate_backward"
            more = {"HAS_WEIGHTS": int(weighted), "MASKED": int(masked), **code_words(row_format)}
            self._kernels[key] = self._programs.kernel("aggregate", name, self._constants | more)
        return self._kernels[key]

    def forward(self, queue: Launcher, block: StagedBlock, x: StagedRows, out: Any) -> None:
        """Compute the weighted sums of source rows."""
        queue.launch(
            self._kernel("aggregate", block.weights is not None, x.format),
            (ceil_div(block.num_dst, self._tuning.grain),),
            (self._tuning.lanes,),
            *(block.indptr, block.columns, x.codes, x.row_scales, x.column_scales),
            *(block.row_scale, block.source_scale, block.weights, block.self_scale, out, block.num_dst),
        )

    def backward(
        self, queue: Launcher, block: StagedBlock, grad: Any, activated: Any, scale: float, out: Any
    ) -> None:
        """Compute the gradient of the source rows, or of the input of their ReLU and dropout if masked."""
        queue.launch(
            self._kernel("aggregate_backward", block.weights is not None),
            (ceil_div(block.num_src, self._tuning.grain),),
            (self._tuning.lanes,),
            *(block.transposed_indptr, block.transposed_rows, block.transposed_edges, grad, block.row_scale),
            *(block.source_scale, block.weights, block.self_scale, activated, np.float32(scale), out),
            *(block.num_src, block.num_dst),
        )
