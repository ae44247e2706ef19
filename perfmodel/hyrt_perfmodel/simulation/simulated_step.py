"""One step on its way through a simulated pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.simulation.step_profile import StepProfile


@dataclass(slots=True)
class SimulatedStep:
    """What a step needs, and when it began and ended."""

    step: int
    """The number of the step in the run, from 0."""
    assignment: Assignment
    profile: StepProfile
    """`assignment` and `profile`: what it runs under."""
    sample_s: list[float]
    load_s: list[float]
    transfer_s: list[float]
    propagate_s: list[float]
    synchronize_s: float
    """`sample_s`, `load_s`, `transfer_s`, `propagate_s` and `synchronize_s`: alone on the machine, with
    noise, until the stage is through; then what it took."""
    started_s: float = 0.0
    """The time at which its sampling began."""
    done_s: float = 0.0
    """The time at which it was synchronized."""


Begin = Callable[[int], SimulatedStep]
"""Called when a step is sampled, in order."""

End = Callable[[SimulatedStep], None]
"""Called when a step is synchronized, in order."""


def with_noise(
    step: int, assignment: Assignment, profile: StepProfile, factors: Sequence[float]
) -> SimulatedStep:
    """A step whose stages (sample, load, transfers, propagations, synchronize) take `factors` as long."""
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
