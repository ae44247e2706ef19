"""Progress of a full-graph step on the host, from gather to gather, at which it can be interrupted and
resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import StepStopped
from hyrt.fullgraph.gathering import Gathered
from hyrt.fullgraph.gradient_sums import ChunkSum, GradientSums
from hyrt.fullgraph.unfinished.step_keeper import KeptStep, StepKeeper, StepPosition, Told

Array = NDArray[Any]


@dataclass(slots=True)
class ChainState:
    """State that the rest of a step needs."""

    layers: list[Gathered] = field(default_factory=list)
    """Gathered layers whose backward pass has not run yet."""
    messages: tuple[Array, ...] = ()
    own: Array | None = None
    """`messages` and `own`: messages of the next gather, and the rows that the stage after it reads."""
    grads: tuple[Array, ...] = ()
    """Backward: gradients of the next stage's outputs."""
    told: Told | None = None
    """The loss sum and the counts; None before the loss is computed."""


class ChainProgress:
    """Counts the half layers of a step: gather and dense stage, in both directions.

    Parameters
    ----------
    plan
        Inputs that determine the step, as plain JSON values.
    sums
        The gradient sums of the step.
    keeper
        Writes mid-step checkpoints; None disables them.
    kept
        The checkpoint to resume from, if there is one.
    num_halves
        Number of half layers of the step.
    """

    def __init__(
        self,
        plan: Mapping[str, Any] | None = None,
        sums: GradientSums | None = None,
        keeper: StepKeeper | None = None,
        kept: KeptStep | None = None,
        num_halves: int = 0,
    ) -> None:
        self._plan = plan or {}
        self._sums = sums or GradientSums()
        self._keeper = keeper
        self._kept = kept
        self._number = 0
        self._num_halves = num_halves
        self.state = ChainState()

    def is_over(self, restore: Callable[[KeptStep], None]) -> bool:
        """Return whether the next half is already done; call `restore` if it is the last one that is."""
        if self._kept is None:
            return False
        self._number += 1
        if self._number == self._kept.position.number:
            kept, self._kept = self._kept, None
            restore(kept)
        return True

    def ended(self) -> None:
        """Mark a half as done, and save a checkpoint if one is due.

        Raises
        ------
        StepStopped
            If the step must stop; the completed part is saved.
        """
        self._number += 1
        if self._keeper is None:
            return
        self._keeper.moved()
        if self._keeper.is_due:
            self._keep(self._keeper)

    def _keep(self, keeper: StepKeeper) -> None:
        matrices: dict[str, Array] = {}
        names: dict[int, str] = {}

        def name(array: Array | None) -> str | None:
            """Return the name of an array; an array with several uses is saved once."""
            if array is None:
                return None
            if id(array) not in names:
                names[id(array)] = str(len(names))
                matrices[names[id(array)]] = array
            return names[id(array)]

        def several(arrays: Sequence[Array]) -> list[str | None]:
            return [name(each) for each in arrays]

        state = self.state
        rest = {
            "layers": [
                [
                    name(each.values),
                    each.takes_gradient,
                    several(each.messages),
                    several(each.kept),
                    name(each.own),
                ]
                for each in state.layers
            ],
            "messages": several(state.messages),
            "own": name(state.own),
            "grads": several(state.grads),
            "there": [[term is not None for term in each.totals] for each in self._sums.each],
        }
        terms = [
            [term.detach().numpy() for term in each.totals if term is not None] for each in self._sums.each
        ]
        losses = {} if state.told is None else {0: state.told}
        position = StepPosition(
            plan=self._plan,
            number=self._number,
            columns=(),
            num_passes=self._num_halves,
            losses=losses,
            sums=terms,
            rest=rest,
        )
        keeper.keep(position, matrices)
        if keeper.stops:
            raise StepStopped


@dataclass(frozen=True, slots=True)
class KeptArrays:
    """Arrays of a step, read from a checkpoint."""

    layers: Sequence[tuple[Array, bool, tuple[Array, ...], tuple[Array, ...], Array | None]]
    """Per layer: gathered rows, whether they need a gradient, messages, other saved tensors, input rows."""
    messages: tuple[Array, ...]
    own: Array | None
    grads: tuple[Array, ...]
    told: Told | None

    @classmethod
    def read(cls, kept: KeptStep, take: Callable[[tuple[int, ...], DTypeLike], Array]) -> KeptArrays:
        """Read all matrices; `take` allocates one."""
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in kept.matrices.items():
            arrays[name] = take(shape, dtype)
            kept.fill(name, arrays[name])
        rest = kept.position.rest

        def one(name: str | None) -> Array | None:
            return None if name is None else arrays[name]

        def several(names: Sequence[str]) -> tuple[Array, ...]:
            return tuple(arrays[name] for name in names)

        return cls(
            layers=[
                (arrays[values], takes_gradient, several(messages), several(others), one(own))
                for values, takes_gradient, messages, others, own in rest["layers"]
            ],
            messages=several(rest["messages"]),
            own=one(rest["own"]),
            grads=several(rest["grads"]),
            told=kept.position.losses.get(0),
        )


def restore_sums(kept: KeptStep, sums: Sequence[ChunkSum]) -> None:
    """Restore the gradient sums of a checkpoint."""
    for chunk_sum, there, terms in zip(sums, kept.position.rest["there"], kept.position.sums, strict=True):
        remaining = iter(terms)
        chunk_sum.totals = [
            torch.from_numpy(next(remaining).copy()) if is_there else None for is_there in there
        ]
