"""Work items of the pipeline: the trainers' shares of a step, their order and their time steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hyrt_perfmodel.policy import Assignment, Threads

from hyrt.device import StepResult
from hyrt.formatting import short_repr
from hyrt.fullgraph.chunk_stats import ChunkedStep
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.telemetry.hooks import Site

_WORK = ("sample", "sample_on_device", "fetch", "load", "transfer", "propagate", "update")


@dataclass(slots=True)
class Failure:
    """Failure of a trainer on a share."""

    error: Exception
    stage: str
    """Name of the failed stage: `sample`, `transfer` or `propagate`."""
    is_lost: bool
    """Whether the trainer is lost; otherwise it has run out of memory, and a smaller share may fit."""


@dataclass(slots=True)
class WorkShare:
    """Part of a step that one trainer computes, as it passes through the pipeline."""

    work: StepWork
    trainer: int
    units: Ids
    """Units of the step that belong to this share."""
    number: int = 0
    """Index of this share in `work.shares`."""
    is_retry: bool = False
    """Whether the share contains units of a failed share."""
    time: int = 0
    """Index of the time step (HopGNN) in which this share runs."""
    batch: MiniBatch | None = None
    """Mini-batch of the share; None if it has no units."""
    result: StepResult | None = None
    """Result of the trainer after propagation."""
    failure: Failure | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by kind of work: `sample` (on the host) or `sample_on_device`, `fetch` (of a step's remote
    rows, divided among its shares), `load`, `transfer`, `propagate`, and `update` (loading the weights of the
    previous step).
    """
    site: Site | None = None
    """Site of the share's stage calls for hooks; None in a run without hooks."""

    @property
    def is_last_time_step(self) -> bool:
        """Whether this share belongs to the last time step of its step."""
        return self.time + 1 == self.work.num_times


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of a step in seconds, from which all other time statistics are computed."""

    iteration_s: float
    """Wall time between the end of the previous step and the end of this step."""
    stage_s: Mapping[str, float]
    """Wall time by stage: for `sample` and `load` (which includes the fetch of remote rows) the sum over
    trainers, for `transfer` and `propagate` the slowest share of each time step, and `synchronize`.
    """
    trainers_s: Mapping[str, tuple[float, ...]]
    """Time of each trainer by kind of work: `sample` (on the host), `sample_on_device`, `fetch`, `load`,
    `transfer`, `propagate` and `update`. The device clock measures it if the device has one.
    """


@dataclass(slots=True)
class StepWork:
    """State of one step."""

    step: int
    """Number of the step in the run, counted from 0."""
    num_times: int = 1
    """Number of time steps in the step."""
    time: int = 0
    """Time step that was propagated last."""
    shares: list[WorkShare] = field(default_factory=list)
    """Shares of each time step, one per trainer in trainer order; then the retried shares, oldest first."""
    synchronize_s: float = 0.0
    """Duration of the gradient reduction and the optimizer step, in seconds."""
    redone: int = 0
    """Number of times that shares were divided because memory ran out."""

    @property
    def has_more_time_steps(self) -> bool:
        """Whether another time step follows the last propagated time step."""
        return self.time + 1 < self.num_times

    @property
    def num_trainers(self) -> int:
        """Number of trainers, including trainers whose share has no units."""
        return 1 + max(share.trainer for share in self.shares)

    @property
    def num_edges(self) -> int:
        """Number of sampled edges in the propagated shares."""
        return sum(share.batch.num_edges for share in self.shares if share.result and share.batch)

    def results(self) -> list[tuple[int, StepResult]]:
        """Return (trainer, result) for each share of the newest time step, in fixed summation order."""
        return [
            (share.trainer, share.result)
            for share in self.shares
            if share.result is not None and share.time == self.time
        ]

    def chunks(self) -> dict[int, ChunkedStep]:
        """Return the chunk statistics of each trainer that trains a full graph in chunks."""
        return {trainer: result.chunks for trainer, result in self.results() if result.chunks is not None}

    def times(self, iteration_s: float) -> StepTimes:
        """Return the times of the step. `iteration_s` is the wall time since the end of the previous step."""

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
            device_s = {} if share.result is None else share.result.seconds
            for stage, seconds in share.seconds.items():
                trainers_s[stage][share.trainer] += device_s.get(stage, seconds)
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
        """Release the buffers of all mini-batches, and drop the shares.

        A share references its step. Without this call, mini-batches and gradients would stay allocated until
        the cyclic garbage collector runs, which is rare in a large process.
        """
        for share in self.shares:
            if share.batch is not None:
                share.batch.release()
        self.shares = []


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlice:
    """Part of every step that one process computes; by default, the complete step.

    A step may be divided into time steps: each has separate mini-batches, and all trainers propagate them
    before the next time step begins.
    """

    num_processes: int = 1
    """Number of processes that train together."""
    local_units: Callable[[int, Ids], Sequence[Ids]] = lambda step, units: [units]
    """Function that selects this process's units for each time step, given a step and all its units."""
    max_time_steps: int = 1
    """Maximum number of time steps per step."""
    fetches_each_time: bool = False
    """Whether remote rows are fetched for each time step instead of once for the whole step."""
    end: Callable[[], None] = lambda: None
    """Callback after the last step was split; a thread in `local_units` then raises `ChannelClosedError`."""

    __repr__ = short_repr


ALL = RankSlice()
"""`RankSlice` of a process that computes complete steps."""


def cut(units: Ids, split: Sequence[int]) -> list[Ids]:
    """Divide units into one piece per trainer, in proportion to the split.

    If the sum of the split is the number of units, pieces have exactly these sizes. A short last step and a
    retried share are divided in proportion. If the split is all zeros, the pieces are equal.
    """
    ends = np.cumsum(split if any(split) else [1] * len(split))
    if ends[-1] != len(units):
        ends = np.rint(ends * (len(units) / ends[-1])).astype(np.int64)
    starts = [0, *ends[:-1]]
    return [units[start:end] for start, end in zip(starts, ends, strict=True)]


class Schedule:
    """Current assignment, and assignments that apply to later steps.

    A change applies to the first step that cannot have been split yet, so that identical events give
    identical bits. The consumer of steps makes changes, and every stage reads the schedule.
    """

    def __init__(self, first: Assignment) -> None:
        # Replace the tuple, never modify it, because the stages read it concurrently.
        self._entries: tuple[tuple[int, Assignment], ...] = ((0, first),)
        self.ahead = 1
        """Number of steps between a change and the first step that it applies to."""

    @property
    def latest(self) -> Assignment:
        """Assignment of the steps that have not been split yet."""
        return self._entries[-1][1]

    def of(self, step: int) -> Assignment:
        """Return the assignment of a step that is in flight or has not been split yet."""
        return next(assignment for first, assignment in reversed(self._entries) if first <= step)

    def change(self, step: int, assignment: Assignment) -> int:
        """Set a new assignment after a step has ended; return the first step that uses it."""
        first = step + self.ahead
        past = max(entry[0] for entry in self._entries if entry[0] <= step)
        retained = [entry for entry in self._entries if past <= entry[0] < first]
        self._entries = (*retained, (first, assignment))
        return first

    def state(self) -> list[tuple[int, tuple[int, ...], tuple[int, int, int]]]:
        """Return the whole schedule as plain values, for a checkpoint."""
        return [
            (first, entry.split, (entry.threads.sample, entry.threads.load, entry.threads.train))
            for first, entry in self._entries
        ]

    def restore(self, state: Sequence[Any], step: int) -> None:
        """Restore the schedule at a step from the result of `state`.

        Raises ValueError if the state has no assignment for that step.
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
