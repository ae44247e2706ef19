"""Loops over edges, run by numba on the host's cores."""

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
    """The passes of a loop. Printing it takes longer than running it over a small block."""
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
    """Run a loop over ranges of rows with equal work: see `hyrt.nn.fused.loop_runner.LoopRunner`.

    With `between`, over the near rows from the first number to the one before the second. Of a loop that adds
    to far rows, threads share the columns instead, so that each row is added to in the order of the edges.
    """
    form = loop.form
    flat, dtype = [], operands[0].dtype
    for k, (operand, rows) in enumerate(zip(form.operands, operands, strict=True)):
        wanted = np.uint64 if operand.kind == "key" else dtype
        if rows.dtype != wanted or not rows.flags.c_contiguous or rows.shape[1] != form.numbers(operand):
            raise ValueError(
                f"operand {k} has shape {rows.shape} and is {rows.dtype}: give a C-contiguous matrix of "
                f"{form.numbers(operand)} columns of {np.dtype(wanted)}"
            )
        flat.append(rows.reshape(-1))
    ranges = edge_ranges(edges.indptr, edges.rows)
    borders = (ranges if between is None else np.unique(ranges.clip(*between))).tolist()
    parts, given = [], iter(outs)
    arrays: list[Array | None] = []
    if loop.combine == "sum":
        for k, result in enumerate(form.results):
            if loop.by_chunk and loop.by_chunk[k]:
                columns = form.heads * (form.width if form.values[result].kind == "row" else 1)
                parts.append(np.zeros((len(borders) - 1, columns), dtype))
                arrays.append(parts[-1].reshape(-1))
            else:
                out = next(given)
                assert out is not None
                if loop.goes_far(k):
                    out.fill(0)
                arrays.append(out.reshape(-1))
    else:
        arrays = [None if each is None else each.reshape(-1) for each in given]
    won = None if winners is None else winners.reshape(-1)
    cut = _functions(loop)
    zero = dtype.type(0)

    values = (
        edges.indptr, edges.columns, edges.rows, edges.positions, edges.numbers, edges.factors,
        edges.row_scale, edges.loop_scale, edges.loops, edges.by_number, won, *flat, *arrays,
    )  # fmt: skip

    def over(first: int, last: int, some: list[tuple[Pass, Callable[..., None]]]) -> None:
        """Some passes over some ranges: each by itself where what is added up over it is asked for."""
        step = 1 if parts else max(1, last - first)
        for chunk in range(first, last, step):
            for part, function in some:
                function(*values, part.head, part.at, chunk, zero, borders[chunk], borders[chunk + step])

    def by_rows(first: int, last: int) -> None:
        over(first, last, cut)

    def by_columns(first: int, last: int) -> None:
        over(0, len(borders) - 1, cut[first:last])

    team = workers or current_workers()
    if loop.to_far:
        team.run_rows(by_columns, len(cut), 1)
    else:
        team.run_rows(by_rows, len(borders) - 1, 1)
    return [part.sum(0) for part in parts]
