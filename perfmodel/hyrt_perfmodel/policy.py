"""What a policy of the resource manager is told and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hyrt_perfmodel.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one step took. Seconds of work, not of waiting."""

    step: int
    """The number of the step in the run, from 0."""
    assignment: Assignment
    """The one that the step ran under."""
    iteration_s: float
    """Wall time from the step before to this one."""
    sample_s: tuple[float, ...]
    load_s: tuple[float, ...]
    """`sample_s` and `load_s`: of each trainer's mini-batch, sampling on the host's cores (together T_SC) and
    loading (together T_L)."""
    sample_on_device_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    propagate_s: tuple[float, ...]
    """`sample_on_device_s`, `transfer_s` and `propagate_s`: of each trainer. All of them are 0 for a trainer
    that had no targets, and where nothing had to be done."""
    synchronize_s: float = 0.0
    """Reducing gradients, the optimiser's step and handing out the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentLimits:
    """What an assignment must keep to."""

    trainers: tuple[str, ...]
    """The names of the trainers, in the order of the split."""
    is_host: tuple[bool, ...]
    """Which of them compute with the threads of the assignment."""
    most_units: tuple[int, ...]
    """The most each may get: what its memory holds; 0 for one that is lost."""
    cores: int
    """Threads may be at most this many in all (see `threads_are_shared`)."""
    delay: int
    """Steps between a decision and the first step that runs under it: a decision made with step i acts on i +
    delay."""
    threads_are_shared: bool = False
    """Whether stages may have more threads together than there are cores, as on a machine where whichever is
    behind gets them; each stage then has at most `cores`."""
    samples_on_device: tuple[bool, ...] = ()
    """Which trainers sample for themselves."""

    def allows(self, assignment: Assignment) -> bool:
        """Whether an assignment keeps to the limits."""
        threads = assignment.threads
        # A CPU trainer that is lost uses no thread.
        host_trains = any(most for host, most in zip(self.is_host, self.most_units, strict=True) if host)
        counts = [threads.sample, threads.load] + ([threads.train] if host_trains else [])
        fits = max(counts) <= self.cores if self.threads_are_shared else sum(counts) <= self.cores
        return fits and all(
            units <= most for units, most in zip(assignment.split, self.most_units, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy answers."""

    assignment: Assignment
    """The assignment of the steps that are not sampled yet; the present one where nothing is to change."""
    reason: str = ""
    """One sentence with its figures; empty where nothing changes."""
    expected_s: float | None = None
    """The iteration the policy expects from it; None where it expects nothing."""
    is_trial: bool = False
    """Whether it is tried for what its times tell, and not because it is expected to be better."""


class Policy(Protocol):
    """A pure function of what has been seen: equal histories give equal decisions."""

    name: str
    description: str

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """Choose the assignment of the steps that are not sampled yet.

        Parameters
        ----------
        history
            The latest steps, oldest first (at most 64; never empty). Steps of older assignments are among
            them: each says which it ran under.
        present
            The assignment that was decided last; it may not have acted yet.
        limits
            The limits that the decision must keep to.
        """
        ...
