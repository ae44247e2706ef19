"""Schedule of full-graph training in chunks (NeuGraph, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSchedule:
    """Choice of NeuGraph's optimizations (sections 3.1 to 3.4). By default, chunks run sequentially."""

    fused: bool = False
    """Whether a gather is one kernel, without an array with one row per edge (3.4)."""
    selective: bool = False
    """Whether the host filters a source chunk's rows if that saves time (3.2)."""
    filter_below: float | None = None
    """Fraction of useful rows below which `selective` filters, or None to use the machine's rates."""
    sub_chunks: int = 1
    """Number of pieces of a chunk, of which one can be copied while another is computed."""
    max_resident: int | None = None
    """Maximum number of pieces on a device at once, or None for `sub_chunks`. 1 disables overlap."""
    swaps: bool = False
    """Whether the sub-chunks are ordered by their times (3.2)."""
    chain: bool = False
    """Whether devices of a switch forward source chunks to each other (3.3)."""
    shares: tuple[float, ...] = ()
    """Relative share of the columns of each device; if empty, columns are assigned by their cost (3.3)."""
    order: Literal["column-row", "row-column"] = "column-row"
    """Order of chunks: forward by columns and backward by rows, or vice versa (3.1, Discussion)."""


MAX_PARTS = 4096
"""Maximum P, at which a table with one number per chunk (P x P) takes 128 MiB."""


def assign_columns(parts: int, speeds: tuple[float, ...]) -> list[list[int]]:
    """Assign P = `parts` equal columns of chunks, each to the device that would finish first.

    `speeds` are the numbers of columns that each device computes per unit of time. Return the columns of each
    device in order.
    """
    columns: list[list[int]] = [[] for _ in speeds]
    for column in range(parts):
        ends = [(len(assigned) + 1) / speed for assigned, speed in zip(columns, speeds, strict=True)]
        columns[ends.index(min(ends))].append(column)
    return columns


def min_parts_for_speeds(speeds: tuple[float, ...], max_parts: int = 16) -> int:
    """Return the smallest P with which `assign_columns` gives each device a column.

    The result is at most `max_parts`, unless there are more devices: many small chunks do not pay off for a
    device that is slower by such a factor.
    """
    max_parts = max(max_parts, len(speeds))
    return next(
        (parts for parts in range(len(speeds), max_parts) if all(assign_columns(parts, speeds))), max_parts
    )


def filter_threshold(copy_bytes_per_s: float, transfer_bytes_per_s: float) -> float:
    """Return the useful fraction of a chunk's rows below which filtering on the host saves time.

    Filtering a fraction u of B bytes takes u B / copy, and transferring this fraction takes u B / transfer.
    Without a filter, all B bytes are transferred. Filtering is faster if u < copy / (copy + transfer).
    `transfer_bytes_per_s` is infinite for a device that reads host memory in place, for which rows are never
    filtered.
    """
    if math.isinf(transfer_bytes_per_s):
        return 0.0
    return copy_bytes_per_s / (copy_bytes_per_s + transfer_bytes_per_s)


def pipelined_s(
    order: Sequence[int], copy_s: Sequence[float], compute_s: Sequence[float], max_resident: int
) -> float:
    """Return the total time of sub-chunks that are copied and computed in the same order.

    `order` contains the indices of the sub-chunks. The device holds at most `max_resident` sub-chunks, so
    another one is copied only after one was computed.
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
    """Order sub-chunks by swapping pairs as long as this reduces the result of `pipelined_s`.

    A copy-bound sub-chunk is only swapped with a compute-bound one, because no other order matters. At most
    `max_trials` swaps are tried. The result is never slower than the original order.
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
