"""Execution of edge loops, on the host with numba or on the device that the calling thread has selected."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from hyrt_perfmodel.user_cache import user_cache_dir
from numpy.typing import NDArray

from hyrt.nn.full_graph import simd
from hyrt.nn.full_graph.traversal import split_by_edges
from hyrt.nn.fused import simd_math
from hyrt.nn.fused.edge_loop import EdgeLoop, Edges
from hyrt.nn.fused.numba_codegen import ColumnPass, NumbaCodegen, column_passes
from hyrt.runtime.files import write_atomically
from hyrt.runtime.workers import Workers, current_workers


@cache
def _called_source() -> bytes:
    """Return the source code that generated loops call. If it changes, numba must recompile the loops."""
    return b"".join(Path(str(module.__file__)).read_bytes() for module in (simd, simd_math))


@cache
def _folder() -> Path:
    """Return the folder of generated source files, in which numba also caches machine code."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or user_cache_dir() / "hyrt") / "saga"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="hyrt-saga-"))


# Lock for source files, because trainers of one process may compile the same loop concurrently.
_WRITING = threading.Lock()


@cache
def compile_loop(source: str) -> Callable[..., None]:
    """Compile generated source code and return its function `loop`.

    The source is written to a file named after its hash, because numba caches machine code per file. The file
    itself is never read.
    """
    path = _folder() / f"{hashlib.sha256(source.encode() + _called_source()).hexdigest()[:32]}.py"
    with _WRITING:
        if not path.exists():
            write_atomically(path, source.encode())
    module = types.ModuleType(f"hyrt_saga_{path.stem}")
    module.__file__ = str(path)
    # Numba imports the module by its name when it loads cached machine code.
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), vars(module))
    loop: Callable[..., None] = vars(module)["loop"]
    return loop


Array = NDArray[Any]


@cache
def _functions(loop: EdgeLoop) -> list[tuple[ColumnPass, Callable[..., None]]]:
    """Compile the passes of a loop, once: generating code takes longer than a loop over a small block."""
    printer = NumbaCodegen(loop)
    parts = column_passes(loop.form, whole=loop.is_whole)
    return [(part, compile_loop(printer.generate(part))) for part in parts]


def run_on_host(
    loop: EdgeLoop,
    edges: Edges,
    operands: Sequence[Array],
    outs: Sequence[Array | None],
    winners: Array | None,
    workers: Workers | None,
    between: tuple[int, int] | None = None,
) -> list[Array]:
    """Run a loop over ranges of rows with about equal work; see `LoopBackend`.

    With `between` = (start, stop), only near rows start to stop - 1 are computed. If the loop adds to far
    rows, threads share the columns instead of the rows, so that each far row is summed in edge order.
    """
    form = loop.form
    flat, dtype = [], operands[0].dtype
    for k, (operand, rows) in enumerate(zip(form.operands, operands, strict=True)):
        expected = np.uint64 if operand.kind == "key" else dtype
        if (
            rows.dtype != expected
            or not rows.flags.c_contiguous
            or rows.shape[1] != form.num_columns(operand)
        ):
            raise ValueError(
                f"operand {k} has shape {rows.shape} and dtype {rows.dtype}: pass a C-contiguous matrix "
                f"with {form.num_columns(operand)} columns of dtype {np.dtype(expected)}"
            )
        flat.append(rows.reshape(-1))
    ranges = split_by_edges(edges.indptr, edges.rows)
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
                if loop.adds_to_far(k):
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

    def over(first: int, last: int, some: list[tuple[ColumnPass, Callable[..., None]]]) -> None:
        """Run passes over ranges; one range at a time if results are summed per range."""
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


class LoopBackend(Protocol):
    """Backend that runs loops over matrices in host memory."""

    def __call__(
        self,
        loop: EdgeLoop,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array | None],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """Run a loop.

        Parameters
        ----------
        loop
            The loop to run.
        edges
            Edges sorted by their near endpoint.
        operands
            One C-contiguous matrix per operand of the expression, all float32 or all float64; rows of edge
            operands by edge id.
        outs
            One matrix per result that is not a total; or the gathered rows and the state for the backward
            pass (None: no state). Computed rows are overwritten.
        winners
            In the backward loop of `max`, the argmax edges from its forward loop.
        workers
            Threads for a loop on the host; by default those of the calling thread.

        Returns
        -------
        One row per result that is a total over all rows.
        """
        ...


_RUNNER: ContextVar[LoopBackend | None] = ContextVar("hyrt_loop_runner", default=None)
_NAME: ContextVar[str] = ContextVar("hyrt_loop_name", default="")


@contextmanager
def use_loop_backend(backend: LoopBackend) -> Iterator[None]:
    """Run edge loops of the calling thread on a device within a `with` block."""
    token = _RUNNER.set(backend)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def is_on_device() -> bool:
    """Return whether a device runs the edge loops of the calling thread."""
    return _RUNNER.get() is not None


@contextmanager
def name_loops(name: str) -> Iterator[None]:
    """Label the calling thread's edge loops within a `with` block, for example with layer and direction."""
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)


def loop_name() -> str:
    """Return the label of the calling thread's edge loops; empty by default."""
    return _NAME.get()


def run_loop(
    loop: EdgeLoop,
    edges: Edges,
    operands: Sequence[Array],
    outs: Sequence[Array | None],
    winners: Array | None,
    workers: Workers | None,
) -> list[Array]:
    """Run an edge loop on the backend of the calling thread; see `LoopBackend`."""
    return (_RUNNER.get() or run_on_host)(loop, edges, operands, outs, winners, workers)
