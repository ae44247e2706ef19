"""From device clocks to the host's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Hand-overs on each side that a clock's offset is estimated from: enough that some of them were quick, few
# enough that the clocks have not drifted meanwhile.
_REACH = 32


def on_host_clock(queues: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Times of a device's queues on the host's clock.

    What is handed over is over, so the host's time then, less the device's time at its end, is the clocks'
    offset plus a delay. The smallest of the hand-overs around one is taken: no span ends after it was handed
    over.

    Parameters
    ----------
    queues
        The table of spans of each queue: `start` and `end` on the device's clock, `handed` on the host's, in
        nanoseconds.

    Returns
    -------
    The same tables with `start` and `end` on the host's clock; lengths are as they were.
    """
    handed, slot = np.unique(np.concatenate([queue["handed"] for queue in queues]), return_inverse=True)
    if not len(handed):
        return [queue.copy() for queue in queues]
    ends = np.full(len(handed), np.iinfo(np.int64).min)
    np.maximum.at(ends, slot, np.concatenate([queue["end"] for queue in queues]))
    delays = np.pad(handed - ends, _REACH, mode="edge")
    offsets = np.lib.stride_tricks.sliding_window_view(delays, 2 * _REACH + 1).min(axis=1)
    moved = []
    first = 0
    for queue in queues:
        table = queue.copy()
        shift = offsets[slot[first : first + len(queue)]]
        table["start"] += shift
        table["end"] += shift
        moved.append(table)
        first += len(queue)
    return moved


def rows_without_overlap(table: NDArray[Any], limit: int) -> list[NDArray[Any]]:
    """Cut a queue's spans into rows in which they are disjoint: a single one where the queue is in order.

    Parameters
    ----------
    table
        The queue's spans, with `start` and `end` on the device's clock.
    limit
        Most rows; what still overlaps goes to the last one, where the later span is cut short at its start.

    Returns
    -------
    Of each row the indices of its spans, by their start.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    starts, ends = table["start"].tolist(), table["end"].tolist()
    for at in np.lexsort((table["end"], table["start"])).tolist():
        row = next((i for i, end in enumerate(free) if end <= starts[at]), None)
        if row is None:
            if len(rows) < limit:
                rows.append([])
                free.append(starts[at])
            row = len(rows) - 1
        rows[row].append(at)
        free[row] = max(ends[at], free[row])
    return [np.array(row) for row in rows]


def made_disjoint(table: NDArray[Any]) -> NDArray[Any]:
    """Spans in order, none before the end of the last: an offset that changes may push them together."""
    table = table.copy()
    if len(table):
        before = np.maximum.accumulate(table["end"])[:-1]
        table["start"][1:] = np.maximum(table["start"][1:], before)
        table["end"] = np.maximum(table["end"], table["start"])
    return table
