"""Rows in a narrow format, as kernels read them."""

from __future__ import annotations

from typing import Any

from hyrt.graph.narrow.row_format import BFLOAT16, FLOAT16, FLOAT32, INT8, INT8_COLUMNS, RowFormat
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.memory import Lease
from hyrt_devices.opencl.programs import Programs
from hyrt_devices.opencl.staged import StagedRows
from hyrt_devices.opencl.tuning import Tuning

_NUMBERS = {FLOAT32: 0, FLOAT16: 1, BFLOAT16: 2, INT8: 3, INT8_COLUMNS: 3}


def code_words(row_format: RowFormat) -> dict[str, int]:
    """What `codes.cl` is compiled with for a format."""
    return {
        "FORMAT": _NUMBERS[row_format],
        "ROW_SCALED": int(row_format.scales == "row"),
        "COLUMN_SCALED": int(row_format.scales == "column"),
    }


def vector_of(tuning: Tuning, width: int) -> int:
    """How many numbers at a time go through kernels that copy rows."""
    return min(tuning.vector, 1 << (width.bit_length() - 1))


def widened(
    programs: Programs,
    tuning: Tuning,
    queue: Launcher,
    lease: Lease,
    rows: StagedRows,
    sizes: tuple[int, int],
) -> Any:
    """A buffer of rows as float32.

    Parameters
    ----------
    programs, tuning, queue
        The device's.
    lease
        Takes the buffer.
    rows
        The rows.
    sizes
        How many there are, and their columns.
    """
    if not rows.format.is_narrow:
        return rows.codes
    count, width = sizes
    words = {"VEC": vector_of(tuning, width), "WIDTH": width, "ITEMS": tuning.items, "GRAIN": tuning.grain}
    kernel = programs.kernel("widen", "widen", {**words, **code_words(rows.format)})
    out = lease.floats(count, width)
    items = ceil_div(ceil_div(count, tuning.grain), tuning.items)
    queue.launch(
        kernel, (items,), (tuning.items,), rows.codes, rows.row_scales, rows.column_scales, out, count
    )
    return out
