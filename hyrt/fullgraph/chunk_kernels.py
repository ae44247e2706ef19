"""Interfaces for chunked steps: device kernels, groups of devices, and the halo exchange between
processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.fullgraph.chunk_grid import EdgeChunk
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.objective import Objective
from hyrt.runtime.workers import current_workers

Array = NDArray[Any]

ChunkBuffer = Literal["read", "accumulated", "result"]
"""Device buffer: rows are gathered from `read` into `accumulated`, and `result` holds the last output."""


class ChunkKernels(Protocol):
    """Kernels of a device for the chunks of a `ChunkedReplica`. Calls take effect in order.

    An implementation may prefetch copies and overlap them with computation if results do not change. Layers
    are numbered from 0, as in the model's description. Parameter gradients are accumulated over calls.
    """

    def begin_step(self, seed: int, step: int) -> None:
        """Start a step with zero gradients; `seed` and `step` are the key of its dropout masks."""
        ...

    def set_trace_label(self, chunk: str) -> None:
        """Set the trace label of the calls that follow; an empty string removes it."""
        ...

    def put(self, buffer: ChunkBuffer, rows: Array) -> None:
        """Upload float32 rows [n, width] to a buffer. The rows must not change until `wait` returns."""
        ...

    def get(self, buffer: ChunkBuffer, out: Array) -> None:
        """Copy a buffer to float32 rows [n, width], which may be read after `wait` or used in later `put`
        calls.
        """
        ...

    def publish_rows(self) -> Any:
        """Publish the rows in `read` for `copy_published_rows` of a device that can access this memory.

        Called right after the upload of the rows, which do not change until `hold_rows` is called.
        """
        ...

    def copy_published_rows(self, published: Any, num_rows: int, width: int) -> Any:
        """Copy float32 rows [num_rows, width] of another device to `read`; return an event for the end."""
        ...

    def hold_rows(self, until: Any) -> None:
        """Delay later writes to `read` until another device's `copy_published_rows` has ended."""
        ...

    def wait_for_array(self, rows: Array) -> None:
        """Wait until a `put` has read an array, or a `get` has written it.

        `rows` must start at the same address as the array in that call.
        """
        ...

    def clear(self, buffer: ChunkBuffer, num_rows: int, width: int) -> None:
        """Set the rows of a buffer to zero."""
        ...

    def apply_dropout(
        self, buffer: ChunkBuffer, vertices: Array, width: int, layer: int, rate: float
    ) -> None:
        """Apply dropout to the rows of vertices [n], with the masks of `hyrt.nn.operators.dropout`."""
        ...

    def gather(
        self,
        layer: int,
        edges: EdgeChunk,
        row_scale: Array | None,
        column_scale: Array | None,
        *,
        self_rows: bool,
        backward: bool,
    ) -> None:
        """Gather rows of `read` along edges into `accumulated`: a_i += r_i sum_j c_j x_j.

        Parameters
        ----------
        layer
            Index of the layer, which determines the row widths and the columns of the sum.
        edges
            The edges; their rows are rows of `accumulated`.
        row_scale, column_scale
            Scales of the accumulated rows and of the rows that are read; None if all are 1.
        self_rows
            Whether the rows are the destinations' input rows, which have separate columns.
        backward
            Whether gradients are propagated from the gathered rows to the source rows.
        """
        ...

    def compute(self, layer: int, buffer: ChunkBuffer, vertices: Array) -> None:
        """Compute `result` from the gathered rows of vertices [n]: the layer's products, then its dropout."""
        ...

    def compute_loss(
        self, labels: NDArray[np.int64], weights: NDArray[np.float32] | None, objective: Objective | None
    ) -> Callable[[], tuple[float, dict[str, float]]]:
        """Compute the loss of the scores in `result`, and write the gradient of the scores to `read`.

        Parameters
        ----------
        labels, weights
            [n] labels and weights of the targets.
        objective
            The objective, if the host computes the loss; None for plain classification.

        Returns
        -------
        Function that returns the loss sum and the counts; called after `wait`.
        """
        ...

    def backward_linear(
        self,
        layer: int,
        inputs: ChunkBuffer,
        grad: ChunkBuffer,
        vertices: Array,
        *,
        needs_input_gradient: bool,
    ) -> None:
        """Propagate the gradient of a `compute` result to the layer's parameters and to its input.

        Parameters
        ----------
        layer, vertices
            The arguments of the preceding `compute`, whose output is still in `result`.
        inputs
            The buffer with the input, which is preserved.
        grad
            The buffer with the gradient, which may be overwritten.
        needs_input_gradient
            Whether the gradient of the input is needed; it is then written to `result`.
        """
        ...

    def flush(self) -> Callable[[], None]:
        """Submit all calls made so far; return a function that waits until they are done."""
        ...

    def gradient_sums(self) -> list[Array]:
        """Return copies of the gradient sums since `begin_step`, in device order. Call this after `wait`."""
        ...

    def set_gradient_sums(self, sums: Sequence[Array]) -> None:
        """Restore gradient sums from `gradient_sums` of the same device. Call this after `begin_step`."""
        ...

    def wait(self) -> None:
        """Wait until all calls are done, including the copies of `get`."""
        ...

    def stats(self) -> ChunkStats:
        """Return the statistics since `begin_step`. Call this after `wait`."""
        ...


class ErrorContext(Protocol):
    """Factory of contexts for the calls of a device: `ChunkDeviceMemory.translate_errors`."""

    def __call__(self) -> AbstractContextManager[None]: ...


class PeerDeviceError(Exception):
    """Error in a device that waits for another device, which has failed."""


class MemberDeviceError(Exception):
    """Failure of device `member` of a group, with the device's exception."""

    def __init__(self, member: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.member = member
        self.error = error


def run_in_threads(parts: Sequence[Callable[[], None]]) -> None:
    """Run one function per device, each in a separate thread, and wait for all threads.

    Raises MemberDeviceError if a device fails, or DeviceOutOfMemoryError if all failed devices ran out of
    memory.
    """
    errors: dict[int, BaseException] = {}

    def run(member: int) -> None:
        try:
            parts[member]()
        except BaseException as error:
            errors[member] = error

    threads = [
        # Use daemon threads, because a hanging device must not keep the process alive.
        threading.Thread(target=run, args=(member,), name=f"hyrt.columns.{member}", daemon=True)
        for member in range(len(parts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Ignore devices that only waited for a failed device.
    errors = {member: error for member, error in errors.items() if not isinstance(error, PeerDeviceError)}
    for member, error in sorted(errors.items()):
        if not isinstance(error, DeviceOutOfMemoryError):
            raise MemberDeviceError(member, error) from error
    for _, error in sorted(errors.items()):
        raise error


class DeviceGroup:
    """Group of devices that each run a part of the step in a thread; a single device uses the calling thread.

    `kernels` and `contexts` have one item per device.
    """

    def __init__(self, kernels: Sequence[ChunkKernels], contexts: Sequence[ErrorContext]) -> None:
        self.kernels = list(kernels)
        self._entered = list(contexts)

    def run(
        self,
        work: Callable[[int, ChunkKernels], None],
        wrap: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Run `work` on every device, with the device's index and kernels.

        With several devices, `wrap` creates a context for the work of each device, which sees its failures.
        Copies to the host are complete on return, and errors are the same as for `run_in_threads`.
        """
        if len(self.kernels) == 1:
            with self._entered[0]():
                work(0, self.kernels[0])
            return

        def run(member: int) -> None:
            with wrap(), self._entered[member]():
                work(member, self.kernels[member])
                self.kernels[member].wait()

        run_in_threads([partial(run, member) for member in range(len(self.kernels))])

    def wait(self) -> None:
        """Wait until the devices' copies to the host are complete."""
        if len(self.kernels) == 1:
            with self._entered[0]():
                self.kernels[0].wait()

    def finish(self) -> None:
        """Wait for all submitted work."""

        def wait(_: int, kernels: ChunkKernels) -> None:
            kernels.set_trace_label("")
            kernels.wait()

        self.run(wait)


# Feature values per exchange: at most 64 MiB per process.
_NUMBERS = 1 << 24


class PendingHalo(Protocol):
    """Exchange of remote rows that is in progress."""

    @property
    def is_complete(self) -> bool:
        """Return whether all rows have been received."""
        ...

    def wait(self) -> None:
        """Wait until all rows have been received. May be called only once."""
        ...


class PendingHaloGradients(Protocol):
    """Exchange of gradients with the owners of the rows."""

    def send(self, round_index: int) -> None:
        """Send the gradients of the rows of an exchange round. Call this for all rounds in order."""
        ...

    def add(self, out: Array) -> None:
        """Wait for the gradients from other processes, and add them to `out` [n, w] in a fixed order."""
        ...


class RowExchange(Protocol):
    """Halo exchange between processes. All processes exchange the same matrices in the same order.

    A matrix has n rows of local vertices, followed by h rows of remote vertices. If several processes compute
    the same rows, each process has some of the edges into these rows, and their gathered sums are reduced.
    """

    @property
    def num_vertices(self) -> int:
        """Total number of vertices over all processes."""
        ...

    @property
    def vertices(self) -> Array:
        """Ids of the local and then the remote vertices, [n + h]."""
        ...

    @property
    def rounds(self) -> Sequence[int]:
        """Number of rows that each exchange round receives; h in total."""
        ...

    @property
    def is_replicated(self) -> bool:
        """Whether other processes compute the same rows, each along some of the edges."""
        ...

    @property
    def multiplies_local(self) -> bool:
        """Whether this process, of all processes with the same rows, has the edges from local rows."""
        ...

    def reduce_sums(self, sums: Array) -> None:
        """Sum the gathered rows of the processes that compute the same rows; all of them get the
        same bits.
        """
        ...

    def broadcast_gradients(self, gradients: Array) -> None:
        """Replace gradients of local rows by the gradients of the process that multiplies with these rows."""
        ...

    def begin(self, matrix: Array) -> PendingHalo:
        """Start to fill the remote rows of a matrix [n + h, w], while its local rows may be read."""
        ...

    def begin_backward(self, matrix: Array) -> PendingHaloGradients:
        """Start to send the gradients of a matrix's remote rows [n + h, w] to the owners of the rows."""
        ...


def fetch_remote_features(
    features: InputRows, width: int, exchange: RowExchange, memory: MatrixPool
) -> Array:
    """Fetch the float32 features [h, width] of remote vertices; all processes must call this together."""
    num, num_remote = len(exchange.vertices), sum(exchange.rounds)
    features_of_remote: Array = memory.take((num_remote, width), np.float32)
    # All processes must choose the same number of columns.
    columns = max(1, min(width, _NUMBERS // exchange.num_vertices))
    for first in range(0, width, columns):
        piece = np.zeros((num, min(columns, width - first)), np.float32)
        features.copy_columns(first, piece[: num - num_remote], current_workers())
        exchange.begin(piece).wait()
        features_of_remote[:, first : first + columns] = piece[num - num_remote :]
    return features_of_remote
