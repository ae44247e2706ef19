"""What brings rows of other processes to one that computes chunks of its own block of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.machine.workers import current_workers

Array = NDArray[Any]

# Numbers of features that travel at a time: 64 MiB, and less at every process.
_NUMBERS = 1 << 24


class ComingRows(Protocol):
    """Rows of other processes on their way, and own ones on theirs."""

    @property
    def arrived(self) -> bool:
        """Whether all are there."""
        ...

    def wait(self) -> None:
        """Until all are there; once."""
        ...


class ReturningRows(Protocol):
    """Gradients on their way to the processes that have the rows."""

    def send(self, wave: int) -> None:
        """Send those of one exchange's rows, which are complete; in the order of the exchanges."""
        ...

    def add(self, out: Array) -> None:
        """Wait, and add to `out` [n, w] what other processes have sent for own rows, in a fixed order."""
        ...


class TravellingRows(Protocol):
    """Exchanges rows with other processes, all of which ask for the same matrices in the same order.

    A matrix has a row for each own vertex, n of them, and after these one for each of the h remote vertices.
    Where several processes compute the same rows, each has some of the edges into them, and what they gather
    is added up.
    """

    @property
    def num_vertices(self) -> int:
        """The vertices of all processes."""
        ...

    @property
    def vertices(self) -> Array:
        """[n + h] the numbers of the vertices in the graph."""
        ...

    @property
    def waves(self) -> Sequence[int]:
        """How many rows each exchange brings; h in all."""
        ...

    @property
    def is_replicated(self) -> bool:
        """Whether other processes compute the same rows, each along some of the edges into them."""
        ...

    @property
    def multiplies_own(self) -> bool:
        """Whether the edges from own rows are here: of processes with the same rows, they are at one."""
        ...

    def add_up(self, sums: Array) -> None:
        """Add up what processes that compute the same rows have gathered; all get the same bits."""
        ...

    def share(self, gradients: Array) -> None:
        """Replace gradients of own rows by those of the process that multiplies with these rows."""
        ...

    def begin(self, matrix: Array) -> ComingRows:
        """Begin to fill the remote rows of a matrix [n + h, w], whose own rows may be read meanwhile."""
        ...

    def begin_back(self, matrix: Array) -> ReturningRows:
        """The way of the remote rows of a matrix [n + h, w] to the processes that have them."""
        ...


def remote_features(
    features: InputRows, width: int, travelling: TravellingRows, memory: RecycledMatrices
) -> Array:
    """[h, width] float32, the features of remote vertices; every process asks for them at once.

    Parameters
    ----------
    features
        Those of own vertices.
    width
        Their columns.
    travelling
        Brings rows.
    memory
        Where the matrix is taken from.
    """
    num, num_remote = len(travelling.vertices), sum(travelling.waves)
    found: Array = memory.take((num_remote, width), np.float32)
    # The same at all processes.
    columns = max(1, min(width, _NUMBERS // travelling.num_vertices))
    for first in range(0, width, columns):
        some = np.zeros((num, min(columns, width - first)), np.float32)
        features.columns(first, some[: num - num_remote], current_workers())
        travelling.begin(some).wait()
        found[:, first : first + columns] = some[num - num_remote :]
    return found
