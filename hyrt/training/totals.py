"""What a run's summary says of all its steps, whichever processes did them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from hyrt_perfmodel.assignment import STAGES

from hyrt.machine.peak_memory import peak_memory_bytes
from hyrt.pipeline.shares import StepTimes


@dataclass(slots=True)
class Totals:
    """Sums over a run, kept in its checkpoints: a resumed run adds to them.

    Parameters
    ----------
    steps
        How many.
    seconds
        Wall time of the steps, without evaluations and checkpoints.
    stage_s
        Work by stage.
    decisions
        How often the resource manager changed the assignment.
    peak_memory_bytes
        Most resident memory of any of the run's processes, as far as it was seen.
    """

    steps: int = 0
    seconds: float = 0.0
    stage_s: dict[str, float] = field(default_factory=dict)
    decisions: int = 0
    peak_memory_bytes: int = 0

    @classmethod
    def restored(cls, state: Mapping[str, Any] | None) -> Self:
        """From a checkpoint's state; empty where it has none."""
        return cls() if state is None else cls(**state)

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        self.see_memory()
        return asdict(self)

    def add(self, times: StepTimes) -> None:
        """Count a step."""
        self.steps += 1
        self.seconds += times.iteration_s
        for stage, seconds in times.stage_s.items():
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def see_memory(self) -> int:
        """The peak with this process's."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory_bytes())
        return self.peak_memory_bytes

    def means(self) -> dict[str, Any]:
        """`stages_s` and `iteration_s` of a step; empty where there was none."""
        if not self.steps:
            return {}
        stages_s = {stage: self.stage_s.get(stage, 0.0) / self.steps for stage in STAGES}
        return {"stages_s": stages_s, "iteration_s": self.seconds / self.steps}
