"""Assignments of work and threads, and the protocol of policies: observations, limits and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

STAGES = ("sample", "load", "transfer", "propagate", "synchronize")
"""Names of the four pipeline stages in order, and `synchronize`, which follows `propagate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Numbers of CPU threads of the host stages."""

    sample: int
    load: int
    train: int
    """Number of threads of the CPU trainer, which is ignored if there is none."""

    def __post_init__(self) -> None:
        if min(self.sample, self.load, self.train) < 1:
            raise ValueError(f"every stage must have at least 1 thread, got {self}")

    def by_name(self) -> dict[str, int]:
        """Return the thread counts by their names in settings and run records: sample, load, train."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Number of a step's targets per trainer, and number of threads per stage."""

    split: tuple[int, ...]
    """Units (targets or subgraphs) of each trainer in a step. Their sum never changes."""
    threads: Threads

    def __post_init__(self) -> None:
        if not self.split or min(self.split) < 0:
            raise ValueError(f"a split must have a number of at least 0 for each trainer, got {self.split}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Measured times of one step in seconds, which exclude waiting."""

    step: int
    """Number of the step in the run, from 0."""
    assignment: Assignment
    """Assignment under which the step ran."""
    iteration_s: float
    """Wall time between the ends of the previous step and of this step."""
    sample_s: tuple[float, ...]
    load_s: tuple[float, ...]
    """Host time of loading each trainer's mini-batch, whose sum is T_L; the sum of `sample_s` is T_SC."""
    sample_on_device_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    propagate_s: tuple[float, ...]
    """`sample_on_device_s`, `transfer_s` and `propagate_s` are times of each trainer, 0 for a trainer without
    targets and for a stage without work."""
    synchronize_s: float = 0.0
    """Time of the gradient reduction, the optimizer step and the weight broadcast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentLimits:
    """Constraints on assignments."""

    trainers: tuple[str, ...]
    """Names of the trainers in the order of the split."""
    is_host: tuple[bool, ...]
    """Whether each trainer computes with the assignment's threads."""
    max_units: tuple[int, ...]
    """Maximum units that fit in the memory of each trainer; 0 for a lost trainer."""
    cores: int
    """Maximum total number of threads, or per stage if `threads_are_shared`."""
    delay: int
    """Number of steps until a decision takes effect: a decision at step i applies from step i + delay."""
    threads_are_shared: bool = False
    """Whether the stages may have more threads in total than there are cores, because the operating system
    assigns cores to the slowest stage. Each stage then has at most `cores` threads."""
    samples_on_device: tuple[bool, ...] = ()
    """Whether each trainer samples on its device."""

    def allows(self, assignment: Assignment) -> bool:
        """Return whether an assignment satisfies the limits."""
        threads = assignment.threads
        # A lost CPU trainer uses no threads.
        host_trains = any(limit for host, limit in zip(self.is_host, self.max_units, strict=True) if host)
        counts = [threads.sample, threads.load] + ([threads.train] if host_trains else [])
        fits = max(counts) <= self.cores if self.threads_are_shared else sum(counts) <= self.cores
        return fits and all(
            units <= limit for units, limit in zip(assignment.split, self.max_units, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision of a policy."""

    assignment: Assignment
    """Assignment of the steps that are not sampled yet, which may be the current assignment."""
    reason: str = ""
    """Sentence with figures that explains the change; empty if nothing changes."""
    expected_s: float | None = None
    """Iteration time that the policy expects, or None if it has no prediction."""
    is_trial: bool = False
    """Whether the assignment is tried for its measurements rather than for an expected gain."""


class Policy(Protocol):
    """Balancing policy. Decisions depend only on the observed history, so equal histories give equal ones."""

    name: str
    description: str

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """Decide the assignment of the steps that are not sampled yet.

        Parameters
        ----------
        history
            The latest 1 to 64 steps, oldest first, each with the assignment under which it ran.
        present
            The last decided assignment, which may not have taken effect yet.
        limits
            Constraints on the decision.
        """
        ...
