"""Speed-weighted shares: how much of a step's units each rank gets, by measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Minimum relative improvement for a change of shares: epoch times vary by about as much.
_MIN_IMPROVEMENT = 0.95


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    """Measurements of an epoch."""

    seconds: float
    """Duration in seconds, at rank 0."""
    speeds: tuple[float | None, ...]
    """[N] units per second of each rank's slowest stage, without waiting for other ranks; None for ranks
    without units.
    """


def shares_by_speed(epochs: Sequence[MeasuredEpoch], num_ranks: int, lag: int = 1) -> tuple[float, ...]:
    """Return the ranks' shares of a step, with sum 1, in the epoch `lag` epochs after the last one.

    All shares are equal at first. After each epoch except the first, which includes compilation, they are set
    so
    that all ranks would take the same time, if that makes the slowest rank faster by more than 5 %. If an
    epoch
    with changed shares was not faster than the epoch before, the bottleneck is elsewhere: the previous shares
    are restored and kept.

    Parameters
    ----------
    epochs
        Completed epochs, in order.
    num_ranks
        Number of ranks, N.
    lag
        Number of epochs until a change takes effect; epochs in between are ignored.
    """
    shares = (1 / num_ranks,) * num_ranks
    previous: tuple[tuple[float, ...], float] | None = None
    acts_from = 1
    for number, epoch in enumerate(epochs):
        if number < acts_from:
            continue
        if previous is not None and epoch.seconds >= previous[1]:
            return previous[0]
        measured_speeds = [speed for speed in epoch.speeds if speed is not None]
        if not measured_speeds:
            continue
        speeds = [min(measured_speeds) if speed is None else speed for speed in epoch.speeds]
        slowest_s = max(share / speed for share, speed in zip(shares, speeds, strict=True))
        previous = None
        if 1 / sum(speeds) < _MIN_IMPROVEMENT * slowest_s:
            previous = shares, epoch.seconds
            shares = tuple(speed / sum(speeds) for speed in speeds)
            acts_from = number + lag
    return shares
