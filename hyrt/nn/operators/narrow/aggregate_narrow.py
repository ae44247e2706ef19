"""Aggregation over a block of rows that are kept in a narrow format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.aggregate import aggregate_into, check_rows, check_weights, scales
from hyrt.nn.operators.narrow import code_kernels
from hyrt.sampling.block import Block

_GRAIN = 512


def aggregate_narrow_into(
    aggregation: Aggregation, block: Block, x: NarrowRows, out: NDArray[np.float32], workers: Workers
) -> None:
    """As `aggregate_into`, of rows in a narrow format that are read in place.

    Parameters
    ----------
    aggregation
        What to compute.
    block
        A block read in place.
    x
        The rows of all vertices.
    out
        [num_dst, aggregation.width(f)] float32.
    workers
        The team of threads that runs the chunks.
    """
    matrix = x.matrix
    if matrix is not None:
        aggregate_into(aggregation, block, matrix, out, workers=workers)
        return
    check_rows(block, x.codes, (x.codes.dtype,))
    check_weights(aggregation, block)
    own_rows = block.destinations if block.in_place and aggregation.self_path != "none" else None
    edges = (block.indptr, block.columns, own_rows, x.codes, x.row_scales, x.column_scales)
    at = aggregation.columns(x.codes.shape[1])
    if aggregation.reduce == "max":

        def work(start: int, stop: int) -> None:
            code_kernels.aggregate_codes_max(*edges, out, *at, start, stop)

    else:
        s = scales(aggregation, block, out.dtype)

        def work(start: int, stop: int) -> None:
            code_kernels.aggregate_codes(*edges, s.row, s.source, s.edge, s.own, out, *at, start, stop)

    workers.run_rows(work, block.num_dst, _GRAIN)
