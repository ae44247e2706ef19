"""Conversion of device clocks to the host's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Number of reports on each side that a clock offset is estimated from: enough to include prompt reports, few
# enough that clock drift is negligible.
_REACH = 32


def on_host_clock(queues: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Convert the times of a device's queues to the host's clock.

    A span is reported after it has ended, so host time at the report minus device time at the span's end is
    the clock offset plus a delay. The minimum over neighbouring reports is used: no span may end after its
    report.

    Parameters
    ----------
    queues
        Table of spans of each queue: `start` and `end` on the device's clock, `handed` (time of the report)
        on the host's clock, in nanoseconds.

    Returns
    -------
    The same tables with `start` and `end` on the host's clock; durations are unchanged.
    """
    handed, slot = np.unique(np.concatenate([queue["handed"] for queue in queues]), return_inverse=True)
    if not len(handed):
        return [queue.copy() for queue in queues]
    ends = np.full(len(handed), np.iinfo(np.int64).min)
    np.maximum.at(ends, slot, np.concatenate([queue["end"] for queue in queues]))
    delays = np.pad(handed - ends, _REACH, mode="edge")
    offsets = np.lib.stride_tricks.sliding_window_view(delays, 2 * _REACH + 1).min(axis=1)
    converted = []
    first = 0
    for queue in queues:
        table = queue.copy()
        shift = offsets[slot[first : first + len(queue)]]
        table["start"] += shift
        table["end"] += shift
        converted.append(table)
        first += len(queue)
    return converted


def rows_without_overlap(table: NDArray[Any], limit: int) -> list[NDArray[Any]]:
    """Split a queue's spans into rows of disjoint spans: a single row if the queue runs in order.

    Parameters
    ----------
    table
        The queue's spans, with `start` and `end` on the device's clock.
    limit
        Maximum number of rows; remaining overlaps go to the last row, where the later span is shortened at
        its start.

    Returns
    -------
    For each row the indices of its spans, ordered by start.
    """
    rows: list[list[int]] = []
    row_ends: list[int] = []
    starts, ends = table["start"].tolist(), table["end"].tolist()
    for index in np.lexsort((table["end"], table["start"])).tolist():
        row = next((i for i, end in enumerate(row_ends) if end <= starts[index]), None)
        if row is None:
            if len(rows) < limit:
                rows.append([])
                row_ends.append(starts[index])
            row = len(rows) - 1
        rows[row].append(index)
        row_ends[row] = max(ends[index], row_ends[row])
    return [np.array(row) for row in rows]


def made_disjoint(table: NDArray[Any]) -> NDArray[Any]:
    """Shift starts so that no span begins before the previous one ends; changing clock offsets may cause
    overlaps.
    """
    table = table.copy()
    if len(table):
        before = np.maximum.accumulate(table["end"])[:-1]
        table["start"][1:] = np.maximum(table["start"][1:], before)
        table["end"] = np.maximum(table["end"], table["start"])
    return table
