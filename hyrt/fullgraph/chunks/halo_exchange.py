"""Interface of the halo exchange: remote rows for processes that compute chunks of a partitioned graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.runtime.workers import current_workers

Array = NDArray[Any]

# Feature values per exchange: at most 64 MiB per process.
_NUMBERS = 1 << 24


class PendingHalo(Protocol):
    """Exchange of rows in progress."""

    @property
    def is_complete(self) -> bool:
        """Return whether all rows have been received."""
        ...

    def wait(self) -> None:
        """Wait until all rows have been received; called once."""
        ...


class PendingHaloGradients(Protocol):
    """Exchange of gradients with the processes that own the rows."""

    def send(self, wave: int) -> None:
        """Send the gradients of the rows of exchange `wave`; called in the order of the exchanges."""
        ...

    def add(self, out: Array) -> None:
        """Wait, and add the gradients that other processes sent to `out` [n, w], in a fixed order."""
        ...


class RowExchange(Protocol):
    """Halo exchange between processes, which all exchange the same matrices in the same order.

    A matrix has n rows of local vertices, followed by h rows of remote vertices. If several processes compute
    the same rows, each has some of the edges into these rows, and their gathered sums are reduced.
    """

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices of all processes."""
        ...

    @property
    def vertices(self) -> Array:
        """Return [n + h] vertex ids in the graph."""
        ...

    @property
    def waves(self) -> Sequence[int]:
        """Return the number of rows of each exchange; h in total."""
        ...

    @property
    def is_replicated(self) -> bool:
        """Return whether other processes compute the same rows, each along some of the edges."""
        ...

    @property
    def multiplies_local(self) -> bool:
        """Return whether this process, of all processes with the same rows, has the edges from local rows."""
        ...

    def reduce_sums(self, sums: Array) -> None:
        """Sum the gathered rows of processes that compute the same rows; all processes get the same bits."""
        ...

    def broadcast_gradients(self, gradients: Array) -> None:
        """Replace gradients of local rows by those of the process that multiplies with these rows."""
        ...

    def begin(self, matrix: Array) -> PendingHalo:
        """Start to fill the remote rows of a matrix [n + h, w]; its local rows may be read meanwhile."""
        ...

    def begin_backward(self, matrix: Array) -> PendingHaloGradients:
        """Start to send the remote rows of a matrix [n + h, w] to the processes that own the rows."""
        ...


def fetch_remote_features(
    features: InputRows, width: int, exchange: RowExchange, memory: MatrixPool
) -> Array:
    """Fetch [h, width] float32 features of remote vertices; a collective call of all processes."""
    num, num_remote = len(exchange.vertices), sum(exchange.waves)
    features_of_remote: Array = memory.take((num_remote, width), np.float32)
    # All processes must choose the same number.
    columns = max(1, min(width, _NUMBERS // exchange.num_vertices))
    for first in range(0, width, columns):
        piece = np.zeros((num, min(columns, width - first)), np.float32)
        features.copy_columns(first, piece[: num - num_remote], current_workers())
        exchange.begin(piece).wait()
        features_of_remote[:, first : first + columns] = piece[num - num_remote :]
    return features_of_remote
