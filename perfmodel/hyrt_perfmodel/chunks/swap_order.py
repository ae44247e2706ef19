"""Processing order of sub-chunks (NeuGraph, section 3.2, pipeline scheduling)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def pipelined_s(
    order: Sequence[int], copy_s: Sequence[float], compute_s: Sequence[float], room: int
) -> float:
    """Return the seconds of sub-chunks that are copied one after the other and computed in the same order.

    Parameters
    ----------
    order
        Indices of the sub-chunks.
    copy_s, compute_s
        Copy time and compute time of each sub-chunk.
    room
        Number of sub-chunks that the device holds: another is copied only after one is computed.
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
    """Order sub-chunks by swapping pairs as long as that reduces the total time.

    Only pairs of a copy-bound and a compute-bound sub-chunk are swapped: only their order matters.

    Parameters
    ----------
    copy_s, compute_s, room
        Parameters of `pipelined_s`.
    most_trials
        Maximum number of swaps to try.

    Returns
    -------
    Indices of the sub-chunks; the order is never slower than the given one.
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
            swapped_s = pipelined_s(order, copy_s, compute_s, room)
            if swapped_s < best:
                best, improved = swapped_s, True
            else:
                order[first], order[second] = a, b
    return order
