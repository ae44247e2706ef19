"""Schedule of full-graph training in chunks (NeuGraph, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSchedule:
    """Optimizations of NeuGraph, sections 3.1 to 3.4; by default, chunks are processed sequentially."""

    fused: bool = False
    """Gather in one kernel, without an array with one row per edge (3.4)."""
    selective: bool = False
    """Filter a source chunk's rows on the host if that saves time (3.2)."""
    filter_below: float | None = None
    """Useful fraction of rows below which `selective` filters; None to derive it from the machine's rates."""
    sub_chunks: int = 1
    """Number of pieces of a chunk, so that one piece is copied while another is computed."""
    max_resident: int | None = None
    """Number of pieces that a device holds at once; None for `sub_chunks`. 1 disables overlap."""
    swaps: bool = False
    """Order the sub-chunks by their times (3.2)."""
    chain: bool = False
    """Devices of one switch forward source chunks to each other (3.3)."""
    shares: tuple[float, ...] = ()
    """Relative shares of the columns per device; if empty, columns are assigned by their cost (3.3)."""
    order: Literal["column-row", "row-column"] = "column-row"
    """Traversal order: forward by columns and backward by rows, or the reverse (3.1, Discussion)."""


MAX_PARTS = 4096
"""Maximum P: a table with one number per chunk (P x P) then takes 128 MiB."""


def assign_columns(parts: int, speeds: tuple[float, ...]) -> list[list[int]]:
    """Assign P = `parts` equal columns of chunks, each to the device that would finish first.

    `speeds` are the columns per unit of time that each device computes. Returns each device's columns in
    order.
    """
    columns: list[list[int]] = [[] for _ in speeds]
    for column in range(parts):
        ends = [(len(assigned) + 1) / speed for assigned, speed in zip(columns, speeds, strict=True)]
        columns[ends.index(min(ends))].append(column)
    return columns


def min_parts_for_speeds(speeds: tuple[float, ...], max_parts: int = 16) -> int:
    """Return the smallest P for which each device gets a column, with speeds as in `assign_columns`.

    The result is at most `max_parts`, unless there are more devices: a device slower than the others by this
    factor is not worth the many small chunks.
    """
    max_parts = max(max_parts, len(speeds))
    return next(
        (parts for parts in range(len(speeds), max_parts) if all(assign_columns(parts, speeds))), max_parts
    )


def filter_threshold(copy_bytes_per_s: float, transfer_bytes_per_s: float) -> float:
    """Return the useful fraction of a chunk's rows below which filtering on the host saves time.

    Filtering a fraction u of B bytes takes u B / copy, and transferring them takes u B / transfer; without a
    filter all B bytes are transferred. Filtering is faster if u < copy / (copy + transfer).
    `transfer_bytes_per_s` is infinite for a device that reads host memory in place; its rows are never
    filtered.
    """
    if math.isinf(transfer_bytes_per_s):
        return 0.0
    return copy_bytes_per_s / (copy_bytes_per_s + transfer_bytes_per_s)


def pipelined_s(
    order: Sequence[int], copy_s: Sequence[float], compute_s: Sequence[float], max_resident: int
) -> float:
    """Return the seconds of sub-chunks that are copied one after the other and computed in the same order.

    `order` lists sub-chunks by index. The device holds at most `max_resident` of them: another is copied only
    after one is computed.
    """
    copied = computed = 0.0
    ended: list[float] = []
    for position, chunk in enumerate(order):
        free = ended[position - max_resident] if position >= max_resident else 0.0
        copied = max(copied, free) + copy_s[chunk]
        computed = max(computed, copied) + compute_s[chunk]
        ended.append(computed)
    return computed


def order_by_swaps(
    copy_s: Sequence[float], compute_s: Sequence[float], max_resident: int, *, max_trials: int = 2000
) -> list[int]:
    """Order sub-chunks by swapping pairs as long as that reduces the time of `pipelined_s`.

    Only pairs of a copy-bound and a compute-bound sub-chunk are swapped: only their order matters. At most
    `max_trials` swaps are tried. The order is never slower than the given one.
    """
    order = list(range(len(copy_s)))
    best = pipelined_s(order, copy_s, compute_s, max_resident)
    trials, improved = 0, True
    while improved:
        improved = False
        for first, second in combinations(range(len(order)), 2):
            a, b = order[first], order[second]
            if (copy_s[a] > compute_s[a]) == (copy_s[b] > compute_s[b]):
                continue
            if trials == max_trials:
                return order
            trials += 1
            order[first], order[second] = b, a
            swapped_s = pipelined_s(order, copy_s, compute_s, max_resident)
            if swapped_s < best:
                best, improved = swapped_s, True
            else:
                order[first], order[second] = a, b
    return order
