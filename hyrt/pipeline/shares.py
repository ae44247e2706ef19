"""How a step's units are shared among trainers, and shared anew when a trainer could not do its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hyrt.device import StepResult
from hyrt.sampling.block import Ids, MiniBatch


@dataclass(slots=True)
class Failure:
    """Why a trainer could not do a share.

    Parameters
    ----------
    error
        What it raised.
    stage
        `sample`, `transfer` or `propagate`.
    is_lost
        Whether the trainer is gone; else it had too little memory, and less may fit.
    """

    error: Exception
    stage: str
    is_lost: bool


@dataclass(slots=True)
class Share:
    """A trainer's part of one step, on its way through the pipeline.

    Parameters
    ----------
    work
        The step.
    trainer
        Index of the trainer.
    units
        Which of the step's units.
    number
        The share's place in `work.shares`.
    batch
        Their mini-batch; None where there are no units.
    result
        Once propagated.
    failure
        Where the trainer could not do it.
    is_again
        Whether it holds units of a share that failed.
    seconds
        Work by stage: `sample` on the host or `sample_on_device`, `load`, `transfer`, `propagate`; the device's own
        times where it measures them.
    """

    work: StepWork
    trainer: int
    units: Ids
    number: int = 0
    is_again: bool = False
    batch: MiniBatch | None = None
    result: StepResult | None = None
    failure: Failure | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class StepWork:
    """One step.

    Parameters
    ----------
    step
        Of the run, counted from 0.
    shares
        One a trainer, in their order; then those that were done again, in the order they were cut.
    seconds
        Work time by stage; of the slowest trainer for transfer and propagate.
    redone
        How often shares were cut anew because of memory.
    """

    step: int
    shares: list[Share] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    redone: int = 0

    @property
    def num_edges(self) -> int:
        """Sampled edges of what was propagated."""
        return sum(share.batch.num_edges for share in self.shares if share.result and share.batch)

    def results(self) -> list[tuple[int, StepResult]]:
        """Trainer and result of every share that was done, in the fixed order of the sums."""
        return [(share.trainer, share.result) for share in self.shares if share.result is not None]

    def add(self, stage: str, seconds: float) -> None:
        """Count work that is done for one trainer after the other."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def note(self, stage: str, seconds: float) -> None:
        """Count work that trainers do at the same time."""
        self.seconds[stage] = max(self.seconds.get(stage, 0.0), seconds)

    def release(self) -> None:
        """Give the buffers of all mini-batches back, and let the shares go.

        A share knows its step: kept here, mini-batches and gradients would wait for the collector of cycles, which in a
        large process comes rarely.
        """
        for share in self.shares:
            if share.batch is not None:
                share.batch.release()
        self.shares = []


def cut(units: Ids, split: Sequence[int]) -> list[Ids]:
    """Cut units into one piece a trainer, in the proportions of the split.

    A step of the split's own size is cut exactly at it; a short last step, or a share that is done again, in its
    proportions. Equal parts where the split is all zero.
    """
    ends = np.cumsum(split if any(split) else [1] * len(split))
    if ends[-1] != len(units):
        ends = np.rint(ends * (len(units) / ends[-1])).astype(np.int64)
    starts = [0, *ends[:-1]]
    return [units[start:end] for start, end in zip(starts, ends, strict=True)]


def handed_over(split: Sequence[int], giver: int, amount: int, takers: Sequence[int]) -> list[int]:
    """The split after `giver` has given `amount` of its units to `takers`, in proportion to what they have."""
    after = list(split)
    after[giver] -= amount
    parts = cut(np.arange(amount, dtype=np.int32), [split[taker] for taker in takers])
    for taker, part in zip(takers, parts, strict=True):
        after[taker] += len(part)
    return after


def recut(
    units: Ids, trainer: int, split: Sequence[int], takers: Sequence[int], *, is_lost: bool
) -> tuple[list[int], list[tuple[int, Ids]]] | None:
    """Who does the units of a share that failed, and the split from then on.

    A trainer that is lost gives everything to the takers. One that is out of memory keeps half (or its present
    share, if that is smaller than what it could not do) and gives the rest; where nobody takes, it does both
    halves one after the other.

    Parameters
    ----------
    units
        Of the share.
    trainer
        Who had it.
    split
        The present one.
    takers
        The others that may get more, in order.
    is_lost
        Whether it is gone.

    Returns
    -------
    The split for steps not yet cut (same sum), and pieces (trainer, units) that hold each unit once, in order; None
    where it cannot be done.
    """
    if is_lost:
        if not takers:
            return None
        after = handed_over(split, trainer, split[trainer], takers)
        pieces = list(zip(takers, cut(units, [split[index] for index in takers]), strict=True))
    elif takers:
        # A share that was cut before the split shrank tries the present one first.
        kept = split[trainer] if split[trainer] < len(units) else len(units) // 2
        after = handed_over(split, trainer, split[trainer] - kept, takers)
        given = cut(units[kept:], [split[index] for index in takers])
        pieces = [(trainer, units[:kept]), *zip(takers, given, strict=True)]
    else:
        half = len(units) // 2
        if not half:
            return None
        after, pieces = list(split), [(trainer, units[:half]), (trainer, units[half:])]
    return after, [(index, piece) for index, piece in pieces if len(piece)]
