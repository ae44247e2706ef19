"""Feature rows that the device reads itself: from its own memory if the matrix fits, else the host's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.narrow.row_format import FLOAT16, FLOAT32
from hyrt.machine.buffer_pool import BufferPool
from hyrt_devices.cuda.driver import Driver
from hyrt_devices.cuda.launch import ROWS, Argument, KernelLauncher
from hyrt_devices.cuda.rows.row_kernels import row_program
from hyrt_devices.cuda.staging import DTYPES

# Rows go to the device in pieces of this size.
_PIECE_BYTES = 64 << 20


def upload(driver: Driver, pool: BufferPool, stream: Any, values: NDArray[Any]) -> torch.Tensor:
    """An array of any size in device memory, through pinned pieces."""
    halves = values.dtype == np.float16
    rows = values.view(np.int16) if halves else values
    with driver.running(stream):
        out = torch.empty(rows.shape, dtype=DTYPES[rows.dtype], device=driver.device)
        per_piece = max(1, _PIECE_BYTES // max(1, rows.nbytes // max(1, len(rows))))
        for start in range(0, len(rows), per_piece):
            piece = rows[start : start + per_piece]
            room = pool.take(piece.shape, rows.dtype)
            np.copyto(room, piece)
            out[start : start + per_piece].copy_(torch.from_numpy(room), non_blocking=True)
            driver.wait(driver.mark(stream))
            pool.give(room)
    return out.view(torch.float16) if halves else out


class ResidentFeatures:
    """A matrix in device memory.

    Parameters
    ----------
    values
        [V, f] float32 or float16, on the device.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self.nbytes = values.nbytes
        self.width = int(values.shape[1])

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, f] float32 rows of the given vertices, on the current stream."""
        return self._values.index_select(0, ids).float()

    def all_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[V, f] float32 rows of all vertices; the matrix itself where it is float32."""
        return self._values.float()

    @property
    def all_rows_bytes(self) -> int:
        """The bytes that `all_rows` takes."""
        return 0 if self._values.dtype == torch.float32 else 4 * self._values.numel()

    def close(self) -> None:
        """Give the matrix back."""
        self._values = self._values.new_empty(0, 0)


class MappedFeatures:
    """A matrix in host memory that kernels read over the link, row by row as they need it.

    Parameters
    ----------
    values
        [V, f] float32 or float16, mapped.
    address
        The address of the matrix on the device.
    ids
        The type of vertex ids in the kernels: `int` or `long long`.
    """

    nbytes = 0

    def __init__(self, launcher: KernelLauncher, values: NDArray[Any], address: np.uint64, ids: str) -> None:
        self._launcher = launcher
        self.width = int(values.shape[1])
        self._values = values
        self._address = address
        row_format = FLOAT16 if values.dtype == np.float16 else FLOAT32
        self._program = row_program(launcher, row_format, ids)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """As `ResidentFeatures.rows`."""
        out = torch.empty(len(ids), self.width, dtype=torch.float32, device=ids.device)
        # All rows are in the matrix, and none was sent.
        arguments: list[Argument] = [None, None, self._address, None, ids, None, out]
        arguments += [np.int64(len(ids)), np.int32(self.width)]
        self._program.launch("widen_rows", len(ids), ROWS, arguments)
        return out

    def all_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """As `ResidentFeatures.all_rows`, of the numbers of all vertices."""
        return self.rows(ids)

    @property
    def all_rows_bytes(self) -> int:
        """As `ResidentFeatures.all_rows_bytes`."""
        return 4 * self._values.size

    def close(self) -> None:
        """Undo the mapping."""
        self._launcher.unmap_host(self._values)


Features = ResidentFeatures | MappedFeatures
"""A feature matrix that the device can read."""
