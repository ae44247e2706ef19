"""What a device does with the chunks of a whole graph."""

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
"""Where rows lie on a device: `read` are gathered from, `accumulated` are added to, and `result` are what was
computed last. Each holds the rows of one interval at a time."""


class ChunkKernels(Protocol):
    """Computes on the chunks that a `ChunkedReplica` hands it, as if in the order of the calls.

    Copies may run ahead of computing, and beside it, where they do not change what is computed.

    Layers are those of the model's description, counted from 0. Gradients of parameters are added up from
    call to call.
    """

    def begin(self, seed: int, step: int) -> None:
        """Start a step: gradients are zero; seed and step key its dropout."""
        ...

    def name(self, chunk: str) -> None:
        """What the calls that follow are about, for a trace; empty for nothing in particular."""
        ...

    def put(self, place: Place, rows: Array) -> None:
        """Bring [n, width] float32 rows there; they stay as they are until `wait`."""
        ...

    def get(self, place: Place, out: Array) -> None:
        """Copy what lies there to [n, width] float32 rows, for `put`s to come, or to be read after `wait`."""
        ...

    def offer_rows(self) -> Any:
        """What lies in `read`, as `take_rows` of a device takes it that reaches this one's memory.

        Called right after it was brought. It stays as it is until `keep_rows` is called.
        """
        ...

    def take_rows(self, offered: Any, num_rows: int, width: int) -> Any:
        """Bring [num_rows, width] float32 rows that another device offers to `read`; tells when that ends."""
        ...

    def keep_rows(self, until: Any) -> None:
        """Let what is written to `read` from now on wait until another device's `take_rows` is through."""
        ...

    def settle(self, rows: Array) -> None:
        """Until what `put` reads of an array, or `get` writes to it, is through.

        The array begins where the one of that call began.
        """
        ...

    def clear(self, place: Place, num_rows: int, width: int) -> None:
        """Set rows there to zero."""
        ...

    def drop(self, place: Place, vertices: Array, width: int, layer: int, rate: float) -> None:
        """Dropout of the rows of [n] vertices there, with the masks of `hyrt.nn.operators.dropout`."""
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
        """Add the rows `read` along edges to `accumulated`: a_i += r_i sum_j c_j x_j.

        Parameters
        ----------
        layer
            The layer, which says the widths of rows and where in them the sum stands.
        edges
            The edges; their rows are those of `accumulated`.
        row_scale, column_scale
            Factors of the rows that are added to, and of those that are read; None where each is 1.
        own
            Whether these are the rows that destinations were given themselves, which stand elsewhere.
        back
            Whether gradients go back, from what was gathered to the rows that were read.
        """
        ...

    def compute(self, layer: int, place: Place, vertices: Array) -> None:
        """Make `result` of what [n] vertices have gathered: a layer's products, and the dropout after it."""
        ...

    def lose(
        self, labels: NDArray[np.int64], weights: NDArray[np.float32] | None, objective: Objective | None
    ) -> Callable[[], tuple[float, dict[str, float]]]:
        """Take the loss of the scores in `result`; their gradient takes the place of `read`.

        Parameters
        ----------
        labels, weights
            [n] of the targets.
        objective
            What the host computes of the scores; None for plain classification.

        Returns
        -------
        Tells the loss sum and the counts, after `wait`.
        """
        ...

    def turn_back(self, layer: int, inputs: Place, grad: Place, vertices: Array, *, wanted: bool) -> None:
        """Take the gradient of what `compute` made back to the layer's parameters and to its input.

        Parameters
        ----------
        layer, vertices
            Those of the `compute` before, whose result still lies there.
        inputs
            Where its input lies, which stays.
        grad
            Where the gradient lies, which is used up.
        wanted
            Whether the gradient of the input is wanted: it is `result` then.
        """
        ...

    def mark(self) -> Callable[[], None]:
        """Start what was called for until now; the result waits until that is computed."""
        ...

    def sums(self) -> list[Array]:
        """Copies of the gradient sums since `begin`, in an order of the device's; called after `wait`."""
        ...

    def set_sums(self, sums: Sequence[Array]) -> None:
        """Go on from gradient sums that `sums` of the same device has given, after `begin`."""
        ...

    def wait(self) -> None:
        """Until all is done: what `get` has copied is there."""
        ...

    def work(self) -> ChunkWork:
        """What was done since `begin`; called after `wait`."""
        ...
