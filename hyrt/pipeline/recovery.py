"""Recovery from trainer failures: failed shares are retried, and later steps are split differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

import numpy as np

from hyrt.errors import DeviceOutOfMemoryError, StageError, describe_error
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.work_items import Failure, Schedule, StepWork, WorkShare, cut
from hyrt.sampling.block import Ids

# Maximum number of times to divide the shares of a step before running out of memory ends the run.
_RETRIES = 3


class Recovery:
    """Recovery from trainer failures. A unit has the same sampled edges on every trainer.

    With `continue_on_loss`, the other trainers take over the units of a lost trainer. `notify` is called on
    the consumer's thread with a message that says which units were moved, and why.
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
        self._pending_notices: SimpleQueue[str] = SimpleQueue()
        self._retired: set[int] = set()

    def say_later(self, text: str) -> None:
        """Queue a message from a stage thread, which is reported on the consumer's thread later."""
        self._pending_notices.put(text)

    def drop_trainer(self, index: int, error: Exception) -> None:
        """Continue without a trainer if the settings allow this, otherwise raise the error."""
        if not self._continue_on_loss:
            raise error
        self._trainers[index].lost = error

    def record_failure(self, share: WorkShare, stage: str, error: Exception) -> None:
        """Record the failure in the share if the run can recover from it, otherwise raise the error."""
        is_lost = not isinstance(error, DeviceOutOfMemoryError)
        if is_lost:
            self.drop_trainer(share.trainer, error)
        share.failure = Failure(error, stage, is_lost=is_lost)

    def retry(self, work: StepWork) -> list[WorkShare]:
        """Divide the failed shares of a step into new shares to be sampled; empty if no share failed.

        All trainers must have finished the step. Raises StageError, which names stage, device and step, if
        memory ran out too often or no trainer is left.
        """
        while not self._pending_notices.empty():
            self._notify(self._pending_notices.get())
        self._retire(work.step)
        failed = [
            (share, share.failure) for share in work.shares if share.failure is not None and len(share.units)
        ]
        short = {share.trainer for share, failure in failed if not failure.is_lost}
        work.redone += bool(short)
        newly_short = {index for index in short if not self._trainers[index].is_memory_limited}
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
                # The split may already be below half of the failed size, which is assumed to fit.
                trainer.max_units = min(trainer.max_units, max(self._split[share.trainer], num_units // 2))
            # Clear the failed share, because its units are now in other shares.
            share.units = share.units[:0]
        return work.shares[first:]

    @property
    def _split(self) -> tuple[int, ...]:
        return self._schedule.latest.split

    def _takers(self, giver: int) -> list[int]:
        others = [i for i, trainer in enumerate(self._trainers) if i != giver and trainer.lost is None]
        roomy = [index for index in others if not self._trainers[index].is_memory_limited]
        # The units of a lost trainer must be moved, even to trainers that have run out of memory before.
        return roomy or (others if self._trainers[giver].lost is not None else [])

    def _retire(self, step: int) -> None:
        """Move the units of trainers that were lost in this step to the other trainers."""
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
        """Add shares to the step in which the units of a failed share are retried."""
        work, trainer = share.work, self._trainers[share.trainer]
        takers = self._takers(share.trainer)
        new = reassign_units(
            share.units, share.trainer, self._split, takers, is_lost=trainer.lost is not None
        )
        if new is None or work.redone > _RETRIES:
            reason = describe_error(failure.error).removeprefix(f"{trainer.name}: ")
            raise StageError(
                f"error in {failure.stage} on {trainer.name} at step {work.step}: {reason}; "
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
            "the whole graph must fit into the device's memory. Set fullgraph.device_memory to train in "
            "chunks, lower model.hidden or model.layers, train on cpu, or train in mini-batches (remove "
            "--full-graph)"
        )
    if isinstance(failure.error, DeviceOutOfMemoryError) and failure.error.remedy:
        return failure.error.remedy
    return (
        "a smaller share did not help. Lower data.batch_size or sampler.fanout, or raise "
        "runtime.device_memory_gib if it is set"
    )


def handed_over(split: Sequence[int], giver: int, amount: int, takers: Sequence[int]) -> list[int]:
    """Return the split after moving `amount` units from `giver` to `takers`, in proportion to their units."""
    after = list(split)
    after[giver] -= amount
    parts = cut(np.arange(amount, dtype=np.int32), [split[taker] for taker in takers])
    for taker, part in zip(takers, parts, strict=True):
        after[taker] += len(part)
    return after


def reassign_units(
    units: Ids, trainer: int, split: Sequence[int], takers: Sequence[int], *, is_lost: bool
) -> tuple[list[int], list[tuple[int, Ids]]] | None:
    """Assign the units of a failed share to trainers, and compute the split of later steps.

    All units of a lost trainer move to `takers`. A trainer that has run out of memory keeps half of its units
    (or its current split, if that is smaller than the failed share), and the rest move. Without `takers`, it
    computes both halves one after the other. Return the split for steps that have not been split yet, with
    the same sum, and pieces (trainer, units) that contain each unit once, in order; None if the share can be
    neither divided nor moved.
    """
    if is_lost:
        if not takers:
            return None
        after = handed_over(split, trainer, split[trainer], takers)
        pieces = list(zip(takers, cut(units, [split[index] for index in takers]), strict=True))
    elif takers:
        # If the split has become smaller since this step was split, try the current split first.
        num_remaining = split[trainer] if split[trainer] < len(units) else len(units) // 2
        after = handed_over(split, trainer, split[trainer] - num_remaining, takers)
        taken_pieces = cut(units[num_remaining:], [split[index] for index in takers])
        pieces = [(trainer, units[:num_remaining]), *zip(takers, taken_pieces, strict=True)]
    else:
        half = len(units) // 2
        if not half:
            return None
        after, pieces = list(split), [(trainer, units[:half]), (trainer, units[half:])]
    return after, [(index, piece) for index, piece in pieces if len(piece)]
