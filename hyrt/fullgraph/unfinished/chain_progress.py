"""How far a step is whose vertices the host computes, gathering by gathering, and where it pauses."""

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
    """What the rest of a step needs of what is done."""

    layers: list[Gathered] = field(default_factory=list)
    """The layers that have gathered, and whose gradients have not gone back yet."""
    messages: tuple[Array, ...] = ()
    own: Array | None = None
    """`messages` and `own`: what the next layer gathers, and the rows that the stage after it reads."""
    grads: tuple[Array, ...] = ()
    """Backward, the gradients of what the next stage made."""
    told: Told | None = None
    """The loss sum and the counts; None before the loss is there."""


class ChainProgress:
    """Counts the halves of the layers of a step: gathering, and computing rows; in both directions.

    Parameters
    ----------
    plan
        What the step depends on; plain values that JSON holds.
    sums
        The gradient sums of the step.
    keeper
        Keeps what is done; None keeps nothing.
    kept
        What is done already; None where nothing is.
    num_halves
        How many halves the step has.
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
        """Whether the half that comes is done already; `restore` is called where it is the last that is."""
        if self._kept is None:
            return False
        self._number += 1
        if self._number == self._kept.position.number:
            kept, self._kept = self._kept, None
            restore(kept)
        return True

    def ended(self) -> None:
        """A half is done.

        Raises
        ------
        StepStopped
            If the step is to end; what is done is kept.
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
            """An array that has several purposes is kept once."""
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
    """What is kept of a step, as arrays again."""

    layers: Sequence[tuple[Array, bool, tuple[Array, ...], tuple[Array, ...], Array | None]]
    """Of each layer what it has gathered, whether that takes a gradient, its messages, what else it keeps,
    and its own rows."""
    messages: tuple[Array, ...]
    own: Array | None
    grads: tuple[Array, ...]
    told: Told | None

    @classmethod
    def read(cls, kept: KeptStep, take: Callable[[tuple[int, ...], DTypeLike], Array]) -> KeptArrays:
        """Read all matrices; `take` gives memory for one."""
        found: dict[str, Array] = {}
        for name, (shape, dtype) in kept.matrices.items():
            found[name] = take(shape, dtype)
            kept.fill(name, found[name])
        rest = kept.position.rest

        def one(name: str | None) -> Array | None:
            return None if name is None else found[name]

        def several(names: Sequence[str]) -> tuple[Array, ...]:
            return tuple(found[name] for name in names)

        return cls(
            layers=[
                (found[values], takes_gradient, several(messages), several(others), one(own))
                for values, takes_gradient, messages, others, own in rest["layers"]
            ],
            messages=several(rest["messages"]),
            own=one(rest["own"]),
            grads=several(rest["grads"]),
            told=kept.position.losses.get(0),
        )


def restore_sums(kept: KeptStep, sums: Sequence[ChunkSum]) -> None:
    """Put back what each sum had come to."""
    for each, there, terms in zip(sums, kept.position.rest["there"], kept.position.sums, strict=True):
        left = iter(terms)
        each.totals = [torch.from_numpy(next(left).copy()) if is_there else None for is_there in there]
