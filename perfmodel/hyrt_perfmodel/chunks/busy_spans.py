"""When a queue is busy, and how long two are at once."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[float, float]]
"""Begins and ends, in any unit of time."""


def joined(spans: Iterable[tuple[float, float]]) -> Spans:
    """Spans that neither touch nor overlap, in order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def length(spans: Spans) -> float:
    """How long joined spans are together."""
    return sum(end - begin for begin, end in spans)


def overlap(first: Spans, second: Spans) -> float:
    """How long both of two joined lists are busy."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        total += max(0.0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total
