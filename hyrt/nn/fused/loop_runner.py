"""Selection of the backend for loops over edges: numba on the host's cores, or a device."""

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
            The computation.
        edges
            Edges by the near end.
        operands
            One C-contiguous matrix per operand of the expression, all float32 or all float64; rows of edges
            by edge id.
        outs
            One matrix per result that is not a total; or the gathered rows and the state for backward, None
            if no state is saved. Computed rows are overwritten.
        winners
            The argmax edges from the loop of `max`, in its backward loop.
        workers
            Thread team, if the host computes; the calling thread's by default.

        Returns
        -------
        Totals over all rows, one row per result that is a total.
        """
        ...


_RUNNER: ContextVar[LoopRunner | None] = ContextVar("hyrt_loop_runner", default=None)
_NAME: ContextVar[str] = ContextVar("hyrt_loop_name", default="")


@contextmanager
def loops_run_by(runner: LoopRunner) -> Iterator[None]:
    """Run the calling thread's loops on a device within a `with` block."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def is_on_device() -> bool:
    """Return whether a device runs the loops of the calling thread."""
    return _RUNNER.get() is not None


@contextmanager
def loops_named(name: str) -> Iterator[None]:
    """Label the calling thread's loops within a `with` block, for example with a layer and direction."""
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)


def loop_name() -> str:
    """Return the label of the calling thread's loops; empty by default."""
    return _NAME.get()


def run_loop(
    loop: EdgeLoop,
    edges: Edges,
    operands: Sequence[Array],
    outs: Sequence[Array | None],
    winners: Array | None,
    workers: Workers | None,
) -> list[Array]:
    """Run a loop on the calling thread's backend; see `LoopRunner`."""
    return (_RUNNER.get() or run_on_host)(loop, edges, operands, outs, winners, workers)
