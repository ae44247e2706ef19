"""The rows of a mini-batch as its first layer takes them, by kernels of hyrt's own in one pass."""

from __future__ import annotations

import numpy as np
import torch

from hyrt.graph.narrow.row_format import BFLOAT16, FLOAT16, FLOAT32, INT8, INT8_COLUMNS, RowFormat
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.inputs import Aggregated
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.tensor_operators.tensor_ops import tensor_scales
from hyrt_devices.cuda.launch import ROWS, Argument, KernelLauncher, KernelProgram
from hyrt_devices.cuda.rows.row_tensors import SentRows

# HYRT_FORMAT of rows.cu.
_FORMATS = {FLOAT32: "0", FLOAT16: "1", BFLOAT16: "2", INT8: "3", INT8_COLUMNS: "3"}


def fuses(row_format: RowFormat, aggregation: Aggregation | None) -> bool:
    """Whether rows are aggregated as they are read: narrow ones; of float32 it would change the rounding."""
    return aggregation is not None and row_format.is_narrow


def row_program(launcher: KernelLauncher, row_format: RowFormat, places: str) -> KernelProgram:
    """The kernels over rows of a format, whose places are of a type of C: `int` or `long long`."""
    return KernelProgram(launcher, "rows", {"HYRT_ID": places, "HYRT_FORMAT": _FORMATS[row_format]})


class RowKernels:
    """Compiled when a format is first met.

    Parameters
    ----------
    launcher
        For the device.
    """

    def __init__(self, launcher: KernelLauncher) -> None:
        self._launcher = launcher
        self._programs: dict[str, KernelProgram] = {}

    def inputs(
        self, rows: SentRows, block: TensorBlock, aggregation: Aggregation | None
    ) -> torch.Tensor | Aggregated:
        """The inputs of a mini-batch, on the current stream.

        Parameters
        ----------
        rows
            Those of the block's sources.
        block
            The first block.
        aggregation
            What the first layer does to its rows before any weight; None where it takes the rows.
        """
        indices = (block.indptr.dtype, block.columns.dtype)
        if aggregation is None or not fuses(rows.format, aggregation) or indices != (torch.int32,) * 2:
            return self._numbers(rows)
        return Aggregated(self._aggregate(rows, block, aggregation))

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
            row, source, own, edge = tensor_scales(aggregation, block, torch.float32)
            arguments = [*edges, row, source, edge, own, out, *shape]
            program.launch("aggregate_rows", block.num_dst, ROWS, arguments)
        return out

    def _program(self, row_format: RowFormat) -> KernelProgram:
        number = _FORMATS[row_format]
        if number not in self._programs:
            self._programs[number] = row_program(self._launcher, row_format, "int")
        return self._programs[number]


def _arrays(rows: SentRows) -> list[Argument]:
    """What `row_of` in rows.cu reads, and the scales of columns."""
    kept = rows.kept
    return [
        rows.sent.codes,
        rows.sent.row_scales,
        None if kept is None else kept.codes,
        None if kept is None else kept.row_scales,
        rows.places,
        rows.sent.column_scales,
    ]
