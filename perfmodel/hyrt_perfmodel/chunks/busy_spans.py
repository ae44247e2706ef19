"""Busy time of queues, and overlap of two queues."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[float, float]]
"""(begin, end) pairs, in any unit of time."""


def joined(spans: Iterable[tuple[float, float]]) -> Spans:
    """Merge spans that touch or overlap; return them in order."""
    merged: Spans = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(spans: Spans) -> float:
    """Return the total length of merged spans."""
    return sum(end - begin for begin, end in spans)


def overlap(first: Spans, second: Spans) -> float:
    """Return the total time in which both of two merged lists are busy."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        total += max(0.0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total
