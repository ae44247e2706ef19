"""Where what is done of a step is kept, and what is kept of it."""

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
    """How far a step is that is computed in passes over columns, by several devices or one."""

    plan: Mapping[str, Any]
    """What the passes and columns depend on; plain values that JSON holds."""
    number: int
    """The pass that is under way, from 0."""
    columns: Sequence[int]
    """How many of its columns each device has done, of those that are dealt to it, in their order."""
    num_passes: int
    """How many passes the step has."""
    losses: Mapping[int, Told] = field(default_factory=dict)
    """By the number of an interval of targets."""
    sums: Sequence[Sequence[Array]] = ()
    """The gradient sums of each device, or of each half of a layer."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """What else is to be known; plain values that JSON holds."""


class KeptStep(Protocol):
    """What is kept of a step."""

    @property
    def position(self) -> StepPosition:
        """How far it was."""
        ...

    @property
    def matrices(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """The shape and the dtype of each matrix."""
        ...

    def fill(self, name: str, out: Array) -> None:
        """Copy a matrix to a C-contiguous one of its shape and dtype."""
        ...


class StepKeeper(Protocol):
    """Keeps what is done of a long step, so that a run that is stopped goes on with the rest of it."""

    @property
    def is_due(self) -> bool:
        """Whether what is done is to be kept now; asked often, by any thread."""
        ...

    @property
    def stops(self) -> bool:
        """Whether the step is to end once that is kept."""
        ...

    def keep(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        """Keep a step; nothing changes meanwhile.

        Raises
        ------
        CheckpointNotWritten
            If it cannot be written.
        """
        ...

    def begun(self, step: int) -> KeptStep | None:
        """What was kept of a step that this process has not begun yet; None where it begins at its beginning.

        It is given once.
        """
        ...

    def begins(self, plan: Mapping[str, Any], kept: KeptStep | None) -> None:
        """Hear where a step begins: after what is kept of it, or None at its beginning."""
        ...

    def moved(self) -> None:
        """Hear that a device has done some of a step; from any thread."""
        ...
