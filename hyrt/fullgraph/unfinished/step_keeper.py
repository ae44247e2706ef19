"""Interface of mid-step checkpoints, and their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Told = tuple[float, dict[str, float]]
"""The loss sum and the counts of some targets."""


@dataclass(frozen=True, slots=True)
class StepPosition:
    """Position in a step that one or several devices compute in passes over columns."""

    plan: Mapping[str, Any]
    """Inputs that determine passes and columns, as plain JSON values."""
    number: int
    """The current pass, from 0."""
    columns: Sequence[int]
    """Number of completed columns of each device, in the order of its assigned columns."""
    num_passes: int
    """Number of passes of the step."""
    losses: Mapping[int, Told] = field(default_factory=dict)
    """Loss and counts by target interval."""
    sums: Sequence[Sequence[Array]] = ()
    """Gradient sums of each device, or of each half of a layer."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """Further state, as plain JSON values."""


class KeptStep(Protocol):
    """Mid-step checkpoint."""

    @property
    def position(self) -> StepPosition:
        """Return the position of the step."""
        ...

    @property
    def matrices(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of each matrix."""
        ...

    def fill(self, name: str, out: Array) -> None:
        """Read a matrix into a C-contiguous array of its shape and dtype."""
        ...


class StepKeeper(Protocol):
    """Saves the completed part of a long step, from which an interrupted run resumes."""

    @property
    def is_due(self) -> bool:
        """Return whether a checkpoint is due; called often, by any thread."""
        ...

    @property
    def stops(self) -> bool:
        """Return whether the step must stop after the checkpoint."""
        ...

    def keep(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        """Save a checkpoint; nothing changes meanwhile.

        Raises
        ------
        CheckpointNotWritten
            If it cannot be written.
        """
        ...

    def begun(self, step: int) -> KeptStep | None:
        """Return the checkpoint of a step that this process has not started yet; None if there is none.

        Each checkpoint is returned once.
        """
        ...

    def begins(self, plan: Mapping[str, Any], kept: KeptStep | None) -> None:
        """Report that a step starts, from a checkpoint or from its beginning (None)."""
        ...

    def moved(self) -> None:
        """Report that a device made progress; from any thread."""
        ...
