"""The order in which sub-chunks are copied and computed (NeuGraph, section 3.2, pipeline scheduling)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def pipelined_s(
    order: Sequence[int], copy_s: Sequence[float], compute_s: Sequence[float], room: int
) -> float:
    """Seconds for sub-chunks that are copied one after the other, and computed in the same order.

    Parameters
    ----------
    order
        Numbers of the sub-chunks.
    copy_s, compute_s
        What each takes to copy and to compute.
    room
        How many the device holds: one more is copied only when one is through.
    """
    copied = computed = 0.0
    ended: list[float] = []
    for position, chunk in enumerate(order):
        free = ended[position - room] if position >= room else 0.0
        copied = max(copied, free) + copy_s[chunk]
        computed = max(computed, copied) + compute_s[chunk]
        ended.append(computed)
    return computed


def swapped_order(
    copy_s: Sequence[float], compute_s: Sequence[float], room: int, *, most_trials: int = 2000
) -> list[int]:
    """Sub-chunks in an order in which pairs have been swapped as long as that made it take less.

    A pair is one that takes longer to copy and one that takes longer to compute: only their order matters.

    Parameters
    ----------
    copy_s, compute_s, room
        The times and the room of `pipelined_s`.
    most_trials
        How many swaps are tried, at most.

    Returns
    -------
    Numbers of the sub-chunks; it never takes longer than the order in which they are given.
    """
    order = list(range(len(copy_s)))
    best = pipelined_s(order, copy_s, compute_s, room)
    trials, improved = 0, True
    while improved:
        improved = False
        for first, second in combinations(range(len(order)), 2):
            a, b = order[first], order[second]
            if (copy_s[a] > compute_s[a]) == (copy_s[b] > compute_s[b]):
                continue
            if trials == most_trials:
                return order
            trials += 1
            order[first], order[second] = b, a
            now_s = pipelined_s(order, copy_s, compute_s, room)
            if now_s < best:
                best, improved = now_s, True
            else:
                order[first], order[second] = a, b
    return order
