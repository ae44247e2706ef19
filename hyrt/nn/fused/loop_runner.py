"""Who runs the loops over edges: numba on the host's cores, or a device that has asked for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from numpy.typing import NDArray

from hyrt.machine.workers import Workers
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.numba_loops import run_on_host

Array = NDArray[Any]


class LoopRunner(Protocol):
    """Runs loops over matrices in the host's memory."""

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
            What is computed.
        edges
            By the near end.
        operands
            One C-contiguous matrix for each operand of the form, all float32 or all float64; those of edges
            by number.
        outs
            A matrix for each result that is no total, or what was gathered and what is kept of it; None
            where nothing is kept. Rows that are computed are overwritten.
        winners
            What a loop for `max` has kept, where this one takes its gradient back.
        workers
            The team of threads, where the host computes; the calling thread's by default.

        Returns
        -------
        What is added up over all rows: one row each.
        """
        ...


_RUNNER: ContextVar[LoopRunner | None] = ContextVar("hyrt_loop_runner", default=None)
_NAME: ContextVar[str] = ContextVar("hyrt_loop_name", default="")


@contextmanager
def loops_run_by(runner: LoopRunner) -> Iterator[None]:
    """Inside, a device runs the loops of the calling thread."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def is_on_device() -> bool:
    """Whether a device runs the loops of the calling thread."""
    return _RUNNER.get() is not None


@contextmanager
def loops_named(name: str) -> Iterator[None]:
    """Inside, the calling thread's loops are about something, such as a layer in one direction."""
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)


def loop_name() -> str:
    """What the calling thread's loops are about; empty where nobody has said."""
    return _NAME.get()


def run_loop(
    loop: EdgeLoop,
    edges: Edges,
    operands: Sequence[Array],
    outs: Sequence[Array | None],
    winners: Array | None,
    workers: Workers | None,
) -> list[Array]:
    """Run a loop where the calling thread's are run: see `LoopRunner`."""
    return (_RUNNER.get() or run_on_host)(loop, edges, operands, outs, winners, workers)
