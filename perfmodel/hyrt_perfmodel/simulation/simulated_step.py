"""State of one step in a simulated pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.simulation.step_profile import StepProfile


@dataclass(slots=True)
class SimulatedStep:
    """Needs of a step, and its start and end times."""

    step: int
    """Step number in the run, from 0."""
    assignment: Assignment
    profile: StepProfile
    """`assignment` and `profile`: configuration of the step."""
    sample_s: list[float]
    load_s: list[float]
    transfer_s: list[float]
    propagate_s: list[float]
    synchronize_s: float
    """`sample_s`, `load_s`, `transfer_s`, `propagate_s` and `synchronize_s`: before the stage ends, its time
    alone on the machine, with noise; afterwards, its actual time."""
    started_s: float = 0.0
    """Start time of its sampling."""
    done_s: float = 0.0
    """End time of its synchronization."""


Begin = Callable[[int], SimulatedStep]
"""Callback when a step is sampled, in step order."""

End = Callable[[SimulatedStep], None]
"""Callback when a step is synchronized, in step order."""


def with_noise(
    step: int, assignment: Assignment, profile: StepProfile, factors: Sequence[float]
) -> SimulatedStep:
    """Scale a step's stage times (sample, load, transfers, propagations, synchronize) by `factors`."""
    sample, load, *rest, synchronize = factors
    count = len(profile.sample_s)
    return SimulatedStep(
        step,
        assignment,
        profile,
        [seconds * sample for seconds in profile.sample_s],
        [seconds * load for seconds in profile.load_s],
        [seconds * factor for seconds, factor in zip(profile.transfer_s, rest[:count], strict=True)],
        [seconds * factor for seconds, factor in zip(profile.propagate_s, rest[count:], strict=True)],
        profile.synchronize_s * synchronize,
    )
