"""Which part of a step's units each rank gets, by how fast it has trained them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Ranks that would be faster by less than this keep what they have: so much do times differ among epochs.
_WORTH = 0.95


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    """What an epoch took."""

    seconds: float
    """Its length, at rank 0."""
    speeds: tuple[float | None, ...]
    """[N] the units a second of each rank's slowest stage, without what it waits for others; None where a
    rank had no units."""


def shares_by_speed(epochs: Sequence[MeasuredEpoch], num_ranks: int, lag: int = 1) -> tuple[float, ...]:
    """The parts of steps, which add up to 1, in the epoch that comes `lag` after the last one that is known.

    All parts are equal at first. After each epoch but the first, which compiles, they become those with which
    all ranks would take the same time, if that makes the slowest one faster by more than 5 %. An epoch that
    was not faster than the one before, though parts had changed, has shown that something else bounds it: the
    parts from before the change come back, and stay.

    Parameters
    ----------
    epochs
        Those that have ended, in order.
    num_ranks
        The number of ranks, N.
    lag
        How many epochs after the one that asks for it a change acts; those in between do not count.
    """
    shares = (1 / num_ranks,) * num_ranks
    before: tuple[tuple[float, ...], float] | None = None
    acts_from = 1
    for number, epoch in enumerate(epochs):
        if number < acts_from:
            continue
        if before is not None and epoch.seconds >= before[1]:
            return before[0]
        known = [speed for speed in epoch.speeds if speed is not None]
        if not known:
            continue
        speeds = [min(known) if speed is None else speed for speed in epoch.speeds]
        slowest_s = max(share / speed for share, speed in zip(shares, speeds, strict=True))
        before = None
        if 1 / sum(speeds) < _WORTH * slowest_s:
            before = shares, epoch.seconds
            shares = tuple(speed / sum(speeds) for speed in speeds)
            acts_from = number + lag
    return shares
