"""Feature rows on torch devices: tensors, kernels that read rows, and resident and mapped features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.feature_cache import Rows
from hyrt.graph.quantized.row_format import BFLOAT16, FLOAT16, FLOAT32, INT8, INT8_COLUMNS, RowFormat
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.operators.tensor_ops import TensorBlock, tensor_scales
from hyrt.runtime.buffer_pool import BufferPool
from hyrt_devices.cuda.driver import DTYPES, Driver
from hyrt_devices.cuda.launch import ROWS, Argument, KernelLauncher, KernelProgram


@dataclass(frozen=True, slots=True)
class RowArrays:
    """Feature rows in host memory, in the format in which they are sent."""

    format: RowFormat
    codes: NDArray[Any]
    """Row values: [n, f] float32, int8, or int16 with the bits of float16 or bfloat16."""
    row_scales: NDArray[np.float32] | None = None
    """Scale of each row's codes: [n], or None."""
    column_scales: NDArray[np.float32] | None = None
    """Scale of each column's codes: [f], or None."""

    @classmethod
    def of(cls, rows: Rows) -> RowArrays:
        """Wrap rows without copying the arrays."""
        if not isinstance(rows, QuantizedRows):
            return cls(FLOAT32, rows)
        codes = rows.codes.view(np.int16) if rows.codes.dtype == np.uint16 else rows.codes
        return cls(rows.format, codes, rows.row_scales, rows.column_scales)

    def moved(self, move: Callable[[NDArray[Any]], torch.Tensor]) -> RowTensors:
        """Return the rows as tensors, converting each array with `move`."""
        scales = (None if each is None else move(each) for each in (self.row_scales, self.column_scales))
        return RowTensors(self.format, move(self.codes), *scales)


@dataclass(frozen=True, slots=True)
class RowTensors:
    """Feature rows on the device."""

    format: RowFormat
    codes: torch.Tensor
    row_scales: torch.Tensor | None = None
    column_scales: torch.Tensor | None = None
    """`codes`, `row_scales` and `column_scales` have the meaning of `RowArrays`."""

    @property
    def nbytes(self) -> int:
        """Size of the codes and row scales in bytes."""
        return self.codes.nbytes + (0 if self.row_scales is None else self.row_scales.nbytes)

    def numbers(self) -> torch.Tensor:
        """Convert the rows to [n, f] float32 on the current stream. Rows that are float32 are not copied."""
        if self.format is FLOAT32:
            return self.codes
        if self.format in (FLOAT16, BFLOAT16):
            return self.codes.view(torch.float16 if self.format is FLOAT16 else torch.bfloat16).float()
        found = self.codes.float()
        if self.row_scales is not None:
            found *= self.row_scales.unsqueeze(1)
        if self.column_scales is not None:
            found *= self.column_scales
        return found

    def joined(self, sent: RowTensors, places: torch.Tensor) -> RowTensors:
        """Combine cached rows and sent rows of the same format into the rows of a mini-batch.

        `places` [n] int32 is the location of each row, as in `CachedRows.slots`.
        """
        is_here, cache_slots = places >= 0, places.clamp(min=0)

        def of_both(cached: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            here = cached.index_select(0, cache_slots)
            if not len(other):
                return here
            # Gather from all n places: selecting only the sent rows would require a synchronization.
            there = other.index_select(0, (-1 - places).clamp(min=0))
            return torch.where(is_here.unsqueeze(1) if here.dim() == 2 else is_here, here, there)

        scales = None
        if self.row_scales is not None and sent.row_scales is not None:
            scales = of_both(self.row_scales, sent.row_scales)
        return replace(sent, codes=of_both(self.codes, sent.codes), row_scales=scales)


@dataclass(frozen=True, slots=True)
class SentRows:
    """Feature rows of a mini-batch on the device, all of which were sent, or some of which are cached."""

    sent: RowTensors
    cached: RowTensors | None = None
    """All rows in the device's cache, in the format of the sent rows; None if `places` is None."""
    places: torch.Tensor | None = None
    """Location of each row, as in `CachedRows.slots`: [n] int32. None if all rows were sent, in order."""

    @property
    def format(self) -> RowFormat:
        return self.sent.format

    @property
    def shape(self) -> tuple[int, int]:
        count = len(self.sent.codes if self.places is None else self.places)
        return count, int(self.sent.codes.shape[1])

    def numbers(self) -> torch.Tensor:
        """Convert the rows to [n, f] float32 with torch operators on the current stream."""
        rows = self.sent
        if self.cached is not None and self.places is not None:
            rows = self.cached.joined(rows, self.places)
        return rows.numbers()


# Values of HYRT_FORMAT in rows.cu.
_FORMATS = {FLOAT32: "0", FLOAT16: "1", BFLOAT16: "2", INT8: "3", INT8_COLUMNS: "3"}


def fuses(row_format: RowFormat, aggregation: Aggregation | None) -> bool:
    """Return whether rows are aggregated while they are read, which is done only for quantized rows.

    For float32 rows, fusion would change the rounding.
    """
    return aggregation is not None and row_format.is_quantized


def row_program(launcher: KernelLauncher, row_format: RowFormat, places: str) -> KernelProgram:
    """Return the kernels for a row format. `places` is the C type of locations, `int` or `long long`."""
    return KernelProgram(launcher, "rows", {"HYRT_ID": places, "HYRT_FORMAT": _FORMATS[row_format]})


class RowKernels:
    """Kernels over rows, which are compiled when a row format is first used."""

    def __init__(self, launcher: KernelLauncher) -> None:
        self._launcher = launcher
        self._programs: dict[str, KernelProgram] = {}

    def inputs(
        self, rows: SentRows, block: TensorBlock, aggregation: Aggregation | None
    ) -> torch.Tensor | AggregatedFeatures:
        """Compute the first layer's inputs from the rows of its block's sources on the current stream.

        `aggregation` is the layer's aggregation if no weight precedes it, or None if the layer takes rows.
        """
        indices = (block.indptr.dtype, block.columns.dtype)
        if aggregation is None or not fuses(rows.format, aggregation) or indices != (torch.int32,) * 2:
            return self._numbers(rows)
        return AggregatedFeatures(self._aggregate(rows, block, aggregation))

    def _numbers(self, rows: SentRows) -> torch.Tensor:
        if rows.format is FLOAT32 and rows.places is None:
            return rows.sent.codes
        count, width = rows.shape
        out = torch.empty(count, width, dtype=torch.float32, device=rows.sent.codes.device)
        arguments = [*_arrays(rows), out, np.int64(count), np.int32(width)]
        self._program(rows.format).launch("widen_rows", count, ROWS, arguments)
        return out

    def _aggregate(self, rows: SentRows, block: TensorBlock, aggregation: Aggregation) -> torch.Tensor:
        width, program = rows.shape[1], self._program(rows.format)
        full = aggregation.width(width)
        out = torch.empty(block.num_dst, full, dtype=torch.float32, device=rows.sent.codes.device)
        sum_at, self_at = (width, 0) if aggregation.self_path == "concat" else (0, -1)
        shape = [np.int32(number) for number in (block.num_dst, width, full, sum_at, self_at)]
        edges: list[Argument] = [block.indptr, block.columns, *_arrays(rows)]
        if aggregation.reduce == "max":
            program.launch("aggregate_rows_max", block.num_dst, ROWS, [*edges, out, *shape])
        else:
            row, source, self_loop, edge = tensor_scales(aggregation, block, torch.float32)
            arguments = [*edges, row, source, edge, self_loop, out, *shape]
            program.launch("aggregate_rows", block.num_dst, ROWS, arguments)
        return out

    def _program(self, row_format: RowFormat) -> KernelProgram:
        number = _FORMATS[row_format]
        if number not in self._programs:
            self._programs[number] = row_program(self._launcher, row_format, "int")
        return self._programs[number]


def _arrays(rows: SentRows) -> list[Argument]:
    """Return the arguments for `row_of` in rows.cu, followed by the column scales."""
    cached = rows.cached
    return [
        rows.sent.codes,
        rows.sent.row_scales,
        None if cached is None else cached.codes,
        None if cached is None else cached.row_scales,
        rows.places,
        rows.sent.column_scales,
    ]


# Bytes of the pieces in which rows are sent to the device.
_PIECE_BYTES = 64 << 20


def upload(driver: Driver, pool: BufferPool, stream: Any, values: NDArray[Any]) -> torch.Tensor:
    """Copy an array of any size to device memory, piece by piece through pinned buffers."""
    halves = values.dtype == np.float16
    rows = values.view(np.int16) if halves else values
    with driver.running(stream):
        out = torch.empty(rows.shape, dtype=DTYPES[rows.dtype], device=driver.device)
        per_piece = max(1, _PIECE_BYTES // max(1, rows.nbytes // max(1, len(rows))))
        for start in range(0, len(rows), per_piece):
            piece = rows[start : start + per_piece]
            buffer = pool.take(piece.shape, rows.dtype)
            np.copyto(buffer, piece)
            out[start : start + per_piece].copy_(torch.from_numpy(buffer), non_blocking=True)
            driver.wait(driver.mark(stream))
            pool.release(buffer)
    return out.view(torch.float16) if halves else out


class ResidentFeatures:
    """Feature matrix [V, f], float32 or float16, in device memory."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self.nbytes = values.nbytes
        self.width = int(values.shape[1])

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Gather the [n, f] float32 rows of vertices `ids` on the current stream."""
        return self._values.index_select(0, ids).float()

    def all_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the [V, f] float32 rows of all vertices. A float32 matrix is not copied."""
        return self._values.float()

    @property
    def all_rows_bytes(self) -> int:
        """Return the bytes that `all_rows` allocates."""
        return 0 if self._values.dtype == torch.float32 else 4 * self._values.numel()

    def close(self) -> None:
        self._values = self._values.new_empty(0, 0)


class MappedFeatures:
    """Feature matrix in mapped host memory, whose rows kernels read over the link.

    `values` is [V, f] float32 or float16, and `address` is its device address. `ids` is the C type of vertex
    ids in the kernels, `int` or `long long`.
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
        """Gather rows as `ResidentFeatures.rows` does."""
        out = torch.empty(len(ids), self.width, dtype=torch.float32, device=ids.device)
        # All rows are in the matrix, so no rows were sent.
        arguments: list[Argument] = [None, None, self._address, None, ids, None, out]
        arguments += [np.int64(len(ids)), np.int32(self.width)]
        self._program.launch("widen_rows", len(ids), ROWS, arguments)
        return out

    def all_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return all rows as `ResidentFeatures.all_rows` does. `ids` must contain all vertices."""
        return self.rows(ids)

    @property
    def all_rows_bytes(self) -> int:
        """Return the bytes that `all_rows` allocates."""
        return 4 * self._values.size

    def close(self) -> None:
        self._launcher.unmap_host(self._values)


Features = ResidentFeatures | MappedFeatures
"""Feature matrix that the device can read."""
