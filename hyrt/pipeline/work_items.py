"""Work items of the pipeline: shares of a step per trainer, their order and their time steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hyrt_perfmodel.policy import Assignment, Threads

from hyrt.device import StepResult
from hyrt.formatting import short_repr
from hyrt.fullgraph.chunks.chunk_stats import ChunkedStep
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.telemetry.hooks import Site

_WORK = ("sample", "sample_on_device", "fetch", "load", "transfer", "propagate", "update")


@dataclass(slots=True)
class Failure:
    """Why a trainer could not do a share."""

    error: Exception
    """What it raised."""
    stage: str
    """`sample`, `transfer` or `propagate`."""
    is_lost: bool
    """Whether the trainer is gone; else it had too little memory, and less may fit."""


@dataclass(slots=True)
class WorkShare:
    """A trainer's part of one step, on its way through the pipeline."""

    work: StepWork
    """The step."""
    trainer: int
    """Index of the trainer."""
    units: Ids
    """Which of the step's units."""
    number: int = 0
    """The share's place in `work.shares`."""
    is_retry: bool = False
    """Whether it holds units of a share that failed."""
    time: int = 0
    """The time step of the step to which it belongs."""
    batch: MiniBatch | None = None
    """The share's mini-batch; None where there are no units."""
    result: StepResult | None = None
    """What the trainer computed, once it has propagated the mini-batch."""
    failure: Failure | None = None
    """Why the trainer could not do it; None where it could."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of the work by stage: `sample` on the host or `sample_on_device`, `fetch` (of a step's remote
    rows, dealt out to its shares), `load_model`, `transfer` and `propagate`; and `update`, in which the
    trainer
    took the weights of the step before."""
    site: Site | None = None
    """The site of its work, in a run that has hooks."""

    @property
    def is_of_last_time(self) -> bool:
        """Whether no time step of the step follows."""
        return self.time + 1 == self.work.num_times


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What a step took in seconds: every other figure of times is a sum or a mean of these."""

    iteration_s: float
    """Wall time from the end of the step before to its own."""
    stage_s: Mapping[str, float]
    """Wall time of the work by stage: of all trainers for `sample` and `load_model` (with the fetch of remote
    rows), of the slowest share of each time step for `transfer` and `propagate`, and of `synchronize`."""
    trainers_s: Mapping[str, tuple[float, ...]]
    """Time of the work of each trainer: `sample` on the host, `sample_on_device`, `fetch`, `load_model`,
    `transfer`, `propagate`, and `update`; by the device's own clock where it measures it."""


@dataclass(slots=True)
class StepWork:
    """One step."""

    step: int
    """The number of the step in the run, counted from 0."""
    num_times: int = 1
    """How many time steps it is divided into."""
    time: int = 0
    """The time step that has been propagated last."""
    shares: list[WorkShare] = field(default_factory=list)
    """One share for each trainer, in their order, for each time step; then those that were done again, in the
    order of cutting."""
    synchronize_s: float = 0.0
    """How long the reduction and the optimizer's step took."""
    redone: int = 0
    """How often shares were cut again because of memory."""

    @property
    def has_more_times(self) -> bool:
        """Whether a time step follows the one that has been propagated."""
        return self.time + 1 < self.num_times

    @property
    def num_trainers(self) -> int:
        """How many trainers have a share, be it without units."""
        return 1 + max(share.trainer for share in self.shares)

    @property
    def num_edges(self) -> int:
        """Sampled edges of what was propagated."""
        return sum(share.batch.num_edges for share in self.shares if share.result and share.batch)

    def results(self) -> list[tuple[int, StepResult]]:
        """Trainer and result of every share of the newest time step, in the fixed order of the sums."""
        return [
            (share.trainer, share.result)
            for share in self.shares
            if share.result is not None and share.time == self.time
        ]

    def chunks(self) -> dict[int, ChunkedStep]:
        """What it took each trainer that holds a whole graph in chunks."""
        return {trainer: result.chunks for trainer, result in self.results() if result.chunks is not None}

    def times(self, iteration_s: float) -> StepTimes:
        """What the step took; `iteration_s` is the wall time since the step before."""

        def of_shares(*stages: str) -> list[float]:
            return [
                share.seconds[stage] for share in self.shares for stage in stages if stage in share.seconds
            ]

        def slowest(stage: str) -> float:
            found = [0.0] * self.num_times
            for share in self.shares:
                found[share.time] = max(found[share.time], share.seconds.get(stage, 0.0))
            return sum(found)

        trainers_s: dict[str, list[float]] = {stage: [0.0] * self.num_trainers for stage in _WORK}
        for share in self.shares:
            own = {} if share.result is None else share.result.seconds
            for stage, seconds in share.seconds.items():
                trainers_s[stage][share.trainer] += own.get(stage, seconds)
        return StepTimes(
            iteration_s=iteration_s,
            stage_s={
                "sample": sum(of_shares("sample", "sample_on_device")),
                "load": sum(of_shares("fetch", "load")),
                "transfer": slowest("transfer"),
                "propagate": slowest("propagate"),
                "synchronize": self.synchronize_s,
            },
            trainers_s={stage: tuple(seconds) for stage, seconds in trainers_s.items()},
        )

    def release(self) -> None:
        """Give the buffers of all mini-batches back, and let the shares go.

        A share knows its step: kept here, mini-batches and gradients would wait for the collector of cycles,
        which in a large process comes rarely.
        """
        for share in self.shares:
            if share.batch is not None:
                share.batch.release()
        self.shares = []


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlice:
    """A process's part of every step; the defaults are those of a process that does all of it, at once.

    A step may be divided into time steps: each has mini-batches of its own, and is propagated by all trainers
    before the next one begins.
    """

    num_processes: int = 1
    """How many processes train together."""
    local_units: Callable[[int, Ids], Sequence[Ids]] = lambda step, units: [units]
    """Gives, from the number of a step and its units, those that this process trains, for each time step."""
    max_time_steps: int = 1
    """The most time steps that a step has."""
    fetches_each_time: bool = False
    """Whether remote rows are fetched in each time step; else once for all of a step."""
    end: Callable[[], None] = lambda: None
    """Called when no more steps are cut: a thread that waits in `local_units` raises `ChannelClosedError`."""

    __repr__ = short_repr


ALL = RankSlice()
"""All of it."""


def cut(units: Ids, split: Sequence[int]) -> list[Ids]:
    """Cut units into one piece a trainer, in the proportions of the split.

    A step of the split's own size is cut exactly at it; a short last step, or a share that is done again, in
    its proportions. Equal parts where the split is all zero.
    """
    ends = np.cumsum(split if any(split) else [1] * len(split))
    if ends[-1] != len(units):
        ends = np.rint(ends * (len(units) / ends[-1])).astype(np.int64)
    starts = [0, *ends[:-1]]
    return [units[start:end] for start, end in zip(starts, ends, strict=True)]


class Schedule:
    """The present assignment, and those that are decided but act later.

    A change acts on the first step that cannot have been cut yet, so that equal events give equal bits.
    Changed by the consumer of steps, read by every stage.

    Parameters
    ----------
    first
        The assignment of the first step.
    """

    def __init__(self, first: Assignment) -> None:
        # Replaced as a whole, never changed: the stages read it meanwhile.
        self._entries: tuple[tuple[int, Assignment], ...] = ((0, first),)
        self.ahead = 1
        """Steps between a change and the first step that runs under it."""

    @property
    def latest(self) -> Assignment:
        """That of the steps that are not cut yet."""
        return self._entries[-1][1]

    def of(self, step: int) -> Assignment:
        """What one step runs under; asked for steps that are in flight or to come."""
        return next(assignment for first, assignment in reversed(self._entries) if first <= step)

    def change(self, step: int, assignment: Assignment) -> int:
        """Decide another assignment when a step is through.

        Returns
        -------
        The first step that runs under it.
        """
        first = step + self.ahead
        past = max(entry[0] for entry in self._entries if entry[0] <= step)
        kept = [entry for entry in self._entries if past <= entry[0] < first]
        self._entries = (*kept, (first, assignment))
        return first

    def state(self) -> list[tuple[int, tuple[int, ...], tuple[int, int, int]]]:
        """All of it as plain values, for a checkpoint."""
        return [
            (first, entry.split, (entry.threads.sample, entry.threads.load, entry.threads.train))
            for first, entry in self._entries
        ]

    def restore(self, state: Sequence[Any], step: int) -> None:
        """Go on at a step from what `state` gave.

        Raises
        ------
        ValueError
            If it says nothing of that step.
        """
        entries = tuple(
            (
                int(first),
                Assignment(
                    split=tuple(split),
                    threads=Threads(sample=threads[0], load=threads[1], train=threads[2]),
                ),
            )
            for first, split, threads in state
        )
        if not entries or entries[0][0] > step:
            raise ValueError(f"its assignments do not cover step {step}")
        self._entries = entries
