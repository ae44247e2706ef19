"""A keeper of steps that ends them where a test asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyrt.fullgraph.unfinished.kept_file import KeptFile, write_kept
from hyrt.fullgraph.unfinished.step_keeper import KeptStep, StepPosition


@dataclass
class Pauses:
    """Asks for a step to be kept when it has been asked so often whether it is time; then the step ends."""

    path: Path
    after: int = 1 << 30
    goes_on: bool = False
    """Whether the step goes on after it was kept."""
    asked: int = 0
    told: list[StepPosition] = field(default_factory=list)
    begun_at: list[KeptStep | None] = field(default_factory=list)
    reads: bool = False

    @property
    def is_due(self) -> bool:
        self.asked += 1
        return self.asked > self.after and not (self.goes_on and self.told and self.asked % 3)

    @property
    def stops(self) -> bool:
        return not self.goes_on

    def keep(self, position: StepPosition, matrices: Mapping[str, Any]) -> None:
        self.told.append(position)
        write_kept(self.path, position, matrices, {})

    def begun(self, step: int) -> KeptStep | None:
        reads, self.reads = self.reads, False
        return KeptFile.read(self.path) if reads else None

    def begins(self, plan: Mapping[str, Any], kept: KeptStep | None) -> None:
        self.begun_at.append(kept)

    def moved(self) -> None:
        """Nothing watches."""
