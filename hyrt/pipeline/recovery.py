"""Recovery: who does the shares of a trainer that is lost or out of memory, and the split from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

import numpy as np

from hyrt.errors import DeviceOutOfMemoryError, StageError, describe_error
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.work_items import Failure, Schedule, StepWork, WorkShare, cut
from hyrt.sampling.block import Ids

# How often one step's shares are cut smaller before the lack of memory ends the run.
_RETRIES = 3


class Recovery:
    """Lets a run go on after a trainer has failed. Units keep their sampled edges, whoever trains them.

    Parameters
    ----------
    trainers
        All trainers of the run.
    schedule
        The schedule whose split changes.
    continue_on_loss
        Whether the other trainers take over from one that fails.
    notify
        Called in the consumer's thread with what was moved between trainers and why.
    """

    def __init__(
        self,
        trainers: Sequence[Trainer],
        schedule: Schedule,
        *,
        continue_on_loss: bool,
        notify: Callable[[str], None],
    ) -> None:
        self._trainers = trainers
        self._schedule = schedule
        self._continue_on_loss = continue_on_loss
        self._notify = notify
        self._unsaid: SimpleQueue[str] = SimpleQueue()
        self._retired: set[int] = set()

    def say_later(self, text: str) -> None:
        """Have the consumer's thread tell what a stage's thread has found."""
        self._unsaid.put(text)

    def drop_trainer(self, index: int, error: Exception) -> None:
        """Go on without a trainer, if the run may; else raise the error."""
        if not self._continue_on_loss:
            raise error
        self._trainers[index].lost = error

    def note(self, share: WorkShare, stage: str, error: Exception) -> None:
        """Keep what can be mended with the share; anything else ends the run."""
        is_lost = not isinstance(error, DeviceOutOfMemoryError)
        if is_lost:
            self.drop_trainer(share.trainer, error)
        share.failure = Failure(error, stage, is_lost=is_lost)

    def retry(self, work: StepWork) -> list[WorkShare]:
        """Cut what failed of a step again: new shares, to be sampled; none where nothing failed.

        Called when every trainer is through with the step.

        Raises
        ------
        StageError
            Naming stage, device and step, when memory was short too often or no trainer is left.
        """
        while not self._unsaid.empty():
            self._notify(self._unsaid.get())
        self._retire(work.step)
        failed = [
            (share, share.failure) for share in work.shares if share.failure is not None and len(share.units)
        ]
        short = {share.trainer for share, failure in failed if not failure.is_lost}
        work.redone += bool(short)
        newly_short = {index for index in short if not self._trainers[index].is_short}
        for share, failure in failed:
            trainer = self._trainers[share.trainer]
            if not failure.is_lost and trainer.max_units is None:
                trainer.max_units = len(share.units)
        first = len(work.shares)
        for share, failure in failed:
            num_units = len(share.units)
            self._resplit(share, failure, share.trainer in newly_short)
            trainer = self._trainers[share.trainer]
            if trainer.max_units is not None:
                # The split may have come to give it less than the half that fits as far as is known.
                trainer.max_units = min(trainer.max_units, max(self._split[share.trainer], num_units // 2))
            # Done with: its units are in other shares now.
            share.units = share.units[:0]
        return work.shares[first:]

    @property
    def _split(self) -> tuple[int, ...]:
        return self._schedule.latest.split

    def _takers(self, giver: int) -> list[int]:
        others = [i for i, trainer in enumerate(self._trainers) if i != giver and trainer.lost is None]
        roomy = [index for index in others if not self._trainers[index].is_short]
        # What a lost trainer had must go somewhere.
        return roomy or (others if self._trainers[giver].lost is not None else [])

    def _retire(self, step: int) -> None:
        """Give the others what newly lost trainers had."""
        for index, trainer in enumerate(self._trainers):
            takers = self._takers(index)
            if trainer.lost is not None and index not in self._retired and takers:
                self._retired.add(index)
                after = handed_over(self._split, index, self._split[index], takers)
                self._change_split(
                    step, trainer, "is lost; the run continues without it", after, trainer.lost
                )

    def _change_split(
        self, step: int, trainer: Trainer, cause: str, after: Sequence[int], error: Exception
    ) -> None:
        shares = ", ".join(
            f"{other.name} {before} → {n}"
            for other, before, n in zip(self._trainers, self._split, after, strict=True)
        )
        self._notify(f"step {step}: {trainer.name} {cause}; split {shares} ({describe_error(error)})")
        self._schedule.change(step, replace(self._schedule.latest, split=tuple(after)))

    def _resplit(self, share: WorkShare, failure: Failure, is_newly_short: bool) -> None:
        """Add the shares to the step that do the units of one that failed."""
        work, trainer = share.work, self._trainers[share.trainer]
        takers = self._takers(share.trainer)
        new = recut(share.units, share.trainer, self._split, takers, is_lost=trainer.lost is not None)
        if new is None or work.redone > _RETRIES:
            why = describe_error(failure.error).removeprefix(f"{trainer.name}: ")
            raise StageError(
                f"error in {failure.stage} on {trainer.name} at step {work.step}: {why}; "
                f"{_remedy(share, failure)}"
            ) from failure.error
        after, pieces = new
        if tuple(after) != self._split:
            self._change_split(work.step, trainer, "is out of memory", after, failure.error)
        elif is_newly_short and not takers:
            self._notify(
                f"step {work.step}: {trainer.name} is out of memory and no other trainer can take "
                f"more, so it trains its share in several parts ({describe_error(failure.error)})"
            )
        for index, units in pieces:
            work.shares.append(
                WorkShare(work, index, units, len(work.shares), is_retry=True, time=share.time)
            )


def _remedy(share: WorkShare, failure: Failure) -> str:
    if failure.is_lost:
        return "no trainer is left"
    if share.batch is not None and share.batch.full_graph is not None:
        if isinstance(failure.error, DeviceOutOfMemoryError) and failure.error.remedy:
            return failure.error.remedy
        return (
            "the whole graph has to fit the device. Give fullgraph.device_memory to train in chunks, lower "
            "model.hidden or model.layers, train on cpu, or take mini-batches (without --full-graph)"
        )
    if isinstance(failure.error, DeviceOutOfMemoryError) and failure.error.remedy:
        return failure.error.remedy
    return (
        "fewer targets did not help. Lower data.batch_size or sampler.fanout, or raise "
        "runtime.device_memory_gib if it is set"
    )


def handed_over(split: Sequence[int], giver: int, amount: int, takers: Sequence[int]) -> list[int]:
    """The split after `giver` has given `amount` units to `receivers`, in proportion to what they have."""
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

    A trainer that is lost gives everything to the takers. One that is out of memory keeps half (or its
    present share, if that is smaller than what it could not do) and gives the rest; where nobody takes, it
    does both halves one after the other.

    Parameters
    ----------
    units
        The units of the share.
    trainer
        The trainer that had the share.
    split
        The present one.
    takers
        The others that may get more, in order.
    is_lost
        Whether it is gone.

    Returns
    -------
    The split for steps not yet cut (same sum), and pieces (trainer, units) that hold each unit once, in
    order; None where it cannot be done.
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
