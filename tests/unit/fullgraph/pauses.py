"""A keeper of steps that ends them where a test asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyrt.fullgraph.step_checkpoint import (
    StepCheckpoint,
    StepCheckpointFile,
    StepPosition,
    write_step_checkpoint,
)


@dataclass
class Pauses:
    """Asks for a step to be kept when it has been asked so often whether it is time; then the step ends."""

    path: Path
    after: int = 1 << 30
    goes_on: bool = False
    """Whether the step goes on after it was kept."""
    asked: int = 0
    told: list[StepPosition] = field(default_factory=list)
    begun_at: list[StepCheckpoint | None] = field(default_factory=list)
    reads: bool = False

    @property
    def is_due(self) -> bool:
        self.asked += 1
        return self.asked > self.after and not (self.goes_on and self.told and self.asked % 3)

    @property
    def should_stop(self) -> bool:
        return not self.goes_on

    def save(self, position: StepPosition, matrices: Mapping[str, Any]) -> None:
        self.told.append(position)
        write_step_checkpoint(self.path, position, matrices, {})

    def take_resumed_step(self, step: int) -> StepCheckpoint | None:
        reads, self.reads = self.reads, False
        return StepCheckpointFile.read(self.path) if reads else None

    def start_step(self, plan: Mapping[str, Any], checkpoint: StepCheckpoint | None) -> None:
        self.begun_at.append(checkpoint)

    def report_progress(self) -> None:
        """Nothing watches."""
