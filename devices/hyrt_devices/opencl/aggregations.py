"""Aggregation kernels of one layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyrt.graph.quantized.row_format import FLOAT32, RowFormat
from hyrt.nn.architecture import Aggregation
from hyrt_devices.opencl.feature_rows import code_words
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.programs import Programs
from hyrt_devices.opencl.staged import StagedBlock, StagedRows
from hyrt_devices.opencl.tuning import Tuning


class AggregationKernels:
    """Kernels for weighted sums over a block and for their gradient; source rows have `width` columns.

    Kernels are compiled on first use, because only then is it known whether there are edge weights. If
    `masked`, source rows are the output of a ReLU, whose gradient is then applied as well.
    """

    def __init__(
        self, programs: Programs, tuning: Tuning, aggregation: Aggregation, width: int, *, masked: bool
    ) -> None:
        self._programs = programs
        self._tuning = tuning
        self._masked = masked
        concat = aggregation.self_path == "concat"
        # The largest power of two that does not exceed the width of a row.
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
            "HAS_OWN": int(aggregation.self_path == "add"),
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
        """Compute the gradient of the source rows; with a mask, before their ReLU and dropout."""
        queue.launch(
            self._kernel("aggregate_backward", block.weights is not None),
            (ceil_div(block.num_src, self._tuning.grain),),
            (self._tuning.lanes,),
            *(block.transposed_indptr, block.transposed_rows, block.transposed_edges, grad, block.row_scale),
            *(block.source_scale, block.weights, block.self_scale, activated, np.float32(scale), out),
            *(block.num_src, block.num_dst),
        )
