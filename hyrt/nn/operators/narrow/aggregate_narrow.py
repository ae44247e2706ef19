"""Aggregation over a block of quantized feature rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.aggregate import aggregate_into, check_rows, check_weights, scales
from hyrt.nn.operators.narrow.code_kernels import aggregate_codes, aggregate_codes_max
from hyrt.sampling.block import Block

_GRAIN = 512


def aggregate_narrow_into(
    aggregation: Aggregation, block: Block, x: NarrowRows, out: NDArray[np.float32], workers: Workers
) -> None:
    """Aggregate quantized rows, which are read in place; otherwise like `aggregate_into`.

    Parameters
    ----------
    aggregation
        Aggregation to compute.
    block
        A block that is read in place.
    x
        The rows of all vertices.
    out
        [num_dst, aggregation.width(f)] float32.
    workers
        Team of threads that runs the chunks.
    """
    matrix = x.matrix
    if matrix is not None:
        aggregate_into(aggregation, block, matrix, out, workers=workers)
        return
    check_rows(block, x.codes, (x.codes.dtype,))
    check_weights(aggregation, block)
    self_rows = block.destinations if block.in_place and aggregation.self_path != "none" else None
    edges = (block.indptr, block.columns, self_rows, x.codes, x.row_scales, x.column_scales)
    at = aggregation.columns(x.codes.shape[1])
    if aggregation.reduce == "max":

        def work(start: int, stop: int) -> None:
            aggregate_codes_max(*edges, out, *at, start, stop)

    else:
        s = scales(aggregation, block, out.dtype)

        def work(start: int, stop: int) -> None:
            aggregate_codes(*edges, s.row, s.source, s.edge, s.own, out, *at, start, stop)

    workers.run_rows(work, block.num_dst, _GRAIN)
