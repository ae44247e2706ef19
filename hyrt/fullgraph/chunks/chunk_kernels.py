"""Interface of a device that computes on the chunks of a full graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt.fullgraph.grid.edge_chunks import EdgeChunk
from hyrt.objective import Objective

Array = NDArray[Any]

Place = Literal["read", "accumulated", "result"]
"""Buffer of a device: rows are gathered from `read` and added to `accumulated`; `result` holds the last
output. Each holds the rows of one interval at a time.
"""


class ChunkKernels(Protocol):
    """Computes on the chunks of a `ChunkedReplica`, as if in the order of the calls.

    Copies may be prefetched and overlap with computation if results do not change.

    Layers are those of the model's description, counted from 0. Parameter gradients are accumulated over
    calls.
    """

    def begin(self, seed: int, step: int) -> None:
        """Start a step: zero the gradients; seed and step key its dropout masks."""
        ...

    def name(self, chunk: str) -> None:
        """Label the following calls in a trace; empty for no label."""
        ...

    def put(self, place: Place, rows: Array) -> None:
        """Upload [n, width] float32 rows to a buffer; the rows must not change until `wait`."""
        ...

    def get(self, place: Place, out: Array) -> None:
        """Copy a buffer to [n, width] float32 rows, for later `put` calls, or to be read after `wait`."""
        ...

    def offer_rows(self) -> Any:
        """Publish the rows in `read` for `take_rows` of a device that can access this one's memory.

        Called right after the rows were uploaded. They do not change until `keep_rows` is called.
        """
        ...

    def take_rows(self, offered: Any, num_rows: int, width: int) -> Any:
        """Copy [num_rows, width] float32 rows of another device to `read`; return an event for the end of the
        copy.
        """
        ...

    def keep_rows(self, until: Any) -> None:
        """Delay later writes to `read` until another device's `take_rows` has finished."""
        ...

    def settle(self, rows: Array) -> None:
        """Wait until a `put` has read an array, or a `get` has written it.

        The array must start at the same address as in that call.
        """
        ...

    def clear(self, place: Place, num_rows: int, width: int) -> None:
        """Set the rows of a buffer to zero."""
        ...

    def drop(self, place: Place, vertices: Array, width: int, layer: int, rate: float) -> None:
        """Apply dropout to the rows of [n] vertices, with the masks of `hyrt.nn.operators.dropout`."""
        ...

    def gather(
        self,
        layer: int,
        edges: EdgeChunk,
        row_scale: Array | None,
        column_scale: Array | None,
        *,
        own: bool,
        back: bool,
    ) -> None:
        """Gather rows of `read` along edges into `accumulated`: a_i += r_i sum_j c_j x_j.

        Parameters
        ----------
        layer
            The layer; determines the row widths and the columns of the sum.
        edges
            The edges; their rows are rows of `accumulated`.
        row_scale, column_scale
            Scales of the accumulated rows and of the rows that are read; None if all are 1.
        own
            Whether the rows are the destinations' input rows, which have their own columns.
        back
            Whether gradients are propagated from the gathered rows to the source rows.
        """
        ...

    def compute(self, layer: int, place: Place, vertices: Array) -> None:
        """Compute `result` from the gathered rows of [n] vertices: the layer's products and the dropout after
        it.
        """
        ...

    def lose(
        self, labels: NDArray[np.int64], weights: NDArray[np.float32] | None, objective: Objective | None
    ) -> Callable[[], tuple[float, dict[str, float]]]:
        """Compute the loss of the scores in `result`; the gradient of the scores is written to `read`.

        Parameters
        ----------
        labels, weights
            [n] labels and weights of the targets.
        objective
            The objective, if the host computes the loss; None for plain classification.

        Returns
        -------
        A function that returns the loss sum and the counts, to be called after `wait`.
        """
        ...

    def turn_back(self, layer: int, inputs: Place, grad: Place, vertices: Array, *, wanted: bool) -> None:
        """Propagate the gradient of a `compute` result to the layer's parameters and to its input.

        Parameters
        ----------
        layer, vertices
            The arguments of the preceding `compute`, whose result is still in `result`.
        inputs
            The buffer with the input, which is preserved.
        grad
            The buffer with the gradient, which may be overwritten.
        wanted
            Whether the gradient of the input is needed; it is then written to `result`.
        """
        ...

    def mark(self) -> Callable[[], None]:
        """Submit all calls so far; the returned function waits until they are done."""
        ...

    def sums(self) -> list[Array]:
        """Return copies of the gradient sums since `begin`, in a device-specific order; call after `wait`."""
        ...

    def set_sums(self, sums: Sequence[Array]) -> None:
        """Restore gradient sums that `sums` of the same device returned; call after `begin`."""
        ...

    def wait(self) -> None:
        """Wait until all calls are done, including the copies of `get`."""
        ...

    def work(self) -> ChunkWork:
        """Return statistics since `begin`; call after `wait`."""
        ...
