"""Execution of loops over edges by numba on the host's cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.workers import Workers, current_workers
from hyrt.nn.fused.compiled import compiled
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.numba_printer import NumbaPrinter, Pass, passes
from hyrt.nn.whole_graph.edge_ranges import edge_ranges

Array = NDArray[Any]


@cache
def _functions(loop: EdgeLoop) -> list[tuple[Pass, Callable[..., None]]]:
    """Compile the passes of a loop. Cached, since code generation takes longer than a small block's loop."""
    printer = NumbaPrinter(loop)
    parts = passes(loop.form, whole=loop.is_whole)
    return [(part, compiled(printer.print(part))) for part in parts]


def run_on_host(
    loop: EdgeLoop,
    edges: Edges,
    operands: Sequence[Array],
    outs: Sequence[Array | None],
    winners: Array | None,
    workers: Workers | None,
    between: tuple[int, int] | None = None,
) -> list[Array]:
    """Run a loop over ranges of rows with equal work; see `hyrt.nn.fused.loop_runner.LoopRunner`.

    With `between` = (start, stop), only near rows start to stop - 1 are computed. If the loop adds to far
    rows, threads divide the columns instead of the rows, so that each far row is summed in edge order.
    """
    form = loop.form
    flat, dtype = [], operands[0].dtype
    for k, (operand, rows) in enumerate(zip(form.operands, operands, strict=True)):
        expected = np.uint64 if operand.kind == "key" else dtype
        if rows.dtype != expected or not rows.flags.c_contiguous or rows.shape[1] != form.numbers(operand):
            raise ValueError(
                f"operand {k} has shape {rows.shape} and is {rows.dtype}: give a C-contiguous matrix of "
                f"{form.numbers(operand)} columns of {np.dtype(expected)}"
            )
        flat.append(rows.reshape(-1))
    ranges = edge_ranges(edges.indptr, edges.rows)
    borders = (ranges if between is None else np.unique(ranges.clip(*between))).tolist()
    totals, remaining = [], iter(outs)
    arrays: list[Array | None] = []
    if loop.combine == "sum":
        for k, result in enumerate(form.results):
            if loop.by_chunk and loop.by_chunk[k]:
                columns = form.heads * (form.width if form.values[result].kind == "row" else 1)
                totals.append(np.zeros((len(borders) - 1, columns), dtype))
                arrays.append(totals[-1].reshape(-1))
            else:
                out = next(remaining)
                assert out is not None
                if loop.goes_far(k):
                    out.fill(0)
                arrays.append(out.reshape(-1))
    else:
        arrays = [None if out is None else out.reshape(-1) for out in remaining]
    won = None if winners is None else winners.reshape(-1)
    functions = _functions(loop)
    zero = dtype.type(0)

    values = (
        edges.indptr, edges.columns, edges.rows, edges.positions, edges.numbers, edges.factors,
        edges.row_scale, edges.loop_scale, edges.loops, edges.by_number, won, *flat, *arrays,
    )  # fmt: skip

    def over(first: int, last: int, some: list[tuple[Pass, Callable[..., None]]]) -> None:
        """Run passes over ranges, range by range if results are summed per range."""
        step = 1 if totals else max(1, last - first)
        for chunk in range(first, last, step):
            for part, function in some:
                function(*values, part.head, part.at, chunk, zero, borders[chunk], borders[chunk + step])

    def by_rows(first: int, last: int) -> None:
        over(first, last, functions)

    def by_columns(first: int, last: int) -> None:
        over(0, len(borders) - 1, functions[first:last])

    team = workers or current_workers()
    if loop.to_far:
        team.run_rows(by_columns, len(functions), 1)
    else:
        team.run_rows(by_rows, len(borders) - 1, 1)
    return [total.sum(0) for total in totals]
