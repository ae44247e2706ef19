"""Result of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import Decision
from hyrt_perfmodel.simulation.simulated_step import SimulatedStep

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """A simulated run."""

    started_s: Floats
    done_s: Floats
    """`started_s` and `done_s`: [iterations] float64, start of sampling and end of synchronization of each
    step."""
    stage_s: Mapping[str, Floats]
    """Seconds of work of sample, load, transfer, propagate and synchronize, each [iterations] float64;
    transfer and propagate of the slowest trainer, without synchronization."""
    trainer_transfer_s: Floats
    trainer_propagate_s: Floats
    """`trainer_transfer_s` and `trainer_propagate_s`: [iterations, trainers] float64."""
    assignments: tuple[Assignment, ...]
    """Assignment of each step."""
    decisions: tuple[tuple[int, Decision], ...]
    """Changes of the assignment: the step after which the policy decided, and the decision, which applies
    `depth` steps later."""

    @property
    def iteration_s(self) -> Floats:
        """[iterations] float64, time between the ends of consecutive steps; the first includes filling the
        pipeline.
        """
        return np.diff(self.done_s, prepend=0.0)

    def settled_iteration_s(self, first: int | None = None, last: int | None = None) -> float:
        """Return the mean iteration time of the steps `first` .. `last` - 1; by default the second half.

        Raises
        ------
        ValueError
            If there is no such step.
        """
        count = len(self.done_s)
        first = count // 2 if first is None else first
        last = count if last is None else last
        if not 0 <= first < last <= count:
            raise ValueError(f"a run of {count} steps has no steps {first} to {last - 1}")
        start_s = self.done_s[first - 1] if first else 0.0
        return float(self.done_s[last - 1] - start_s) / (last - first)


def simulation_of(steps: Sequence[SimulatedStep], decisions: Sequence[tuple[int, Decision]]) -> Simulation:
    """Collect all steps of a run, in order."""
    transfer_s = np.array([step.transfer_s for step in steps])
    propagate_s = np.array([step.propagate_s for step in steps])
    return Simulation(
        started_s=np.array([step.started_s for step in steps]),
        done_s=np.array([step.done_s for step in steps]),
        stage_s={
            "sample": np.array([sum(step.sample_s) for step in steps]),
            "load": np.array([sum(step.load_s) for step in steps]),
            "transfer": transfer_s.max(axis=1),
            "propagate": propagate_s.max(axis=1),
            "synchronize": np.array([step.synchronize_s for step in steps]),
        },
        trainer_transfer_s=transfer_s,
        trainer_propagate_s=propagate_s,
        assignments=tuple(step.assignment for step in steps),
        decisions=tuple(decisions),
    )
