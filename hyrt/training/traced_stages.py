"""The stages with a trace of what they do: a run without one uses none of this."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hyrt_perfmodel.assignment import Assignment

from hyrt.device import QueueListener
from hyrt.device.calls import call_device
from hyrt.errors import DeviceFault
from hyrt.machine.workers import Chunk, Worked
from hyrt.observe.events import Balanced, Emit, Event, Notice, StepGroup
from hyrt.observe.trace.trace import NONE, Trace, Track
from hyrt.pipeline.shares import Share, StepWork
from hyrt.pipeline.stages import StageCalls, Trainer


class TracedStages:
    """Passes every call on to the stages and notes when it began and ended; split and threads where they change.

    Parameters
    ----------
    stages
        Do the work.
    trace
        Takes the slices.
    """

    def __init__(self, stages: StageCalls, trace: Trace) -> None:
        self.trainers = stages.trainers
        self.schedule = stages.schedule
        self._stages = stages
        self._trace = trace
        self._sample, self._load, self._transfer, self._propagate, self._update = map(
            trace.number, ("sample", "load", "transfer", "propagate", "update")
        )
        self._split = [trace.counter(f"split {trainer.name}", "units") for trainer in self.trainers]
        self._threads = {
            "sample": trace.counter("threads sample", "threads"),
            "load": trace.counter("threads load", "threads"),
            "train": trace.counter("threads propagate", "threads"),
        }
        self._assignment: Assignment | None = None
        # Of each trainer: what takes the weights does not say after which step.
        self._steps = [NONE] * len(self.trainers)
        # Of the steps in flight: which of its step's shares each is, by identity.
        self._numbers: dict[int, int] = {}

    def cut(self, step: int) -> list[Share]:
        assignment = self.schedule.of(step)
        if assignment is not self._assignment:
            self._note(assignment)
        shares = self._stages.cut(step)
        self._number(shares, 0)
        return shares

    def sample(self, share: Share) -> None:
        # A share without units goes through the stages too, where nothing is done for it.
        if len(share.units):
            with self._slice(self._sample, share):
                self._stages.sample(share)
        else:
            self._stages.sample(share)

    def load(self, share: Share) -> None:
        if len(share.units):
            with self._slice(self._load, share):
                self._stages.load(share)
        else:
            self._stages.load(share)

    def transfer(self, share: Share) -> Any:
        if len(share.units):
            with self._slice(self._transfer, share):
                return self._stages.transfer(share)
        return self._stages.transfer(share)

    def propagate(self, share: Share, staged: Any) -> None:
        self._steps[share.trainer] = share.work.step
        if len(share.units):
            with self._slice(self._propagate, share):
                self._stages.propagate(share, staged)
        else:
            self._stages.propagate(share, staged)

    def update(self, index: int) -> None:
        with self._trace.track().begin(self._update, self._steps[index], index):
            self._stages.update(index)

    def again(self, work: StepWork) -> list[Share]:
        num_shares = len(work.shares)
        shares = self._stages.again(work)
        if shares:
            self._number(shares, num_shares)
        else:
            for share in work.shares:
                del self._numbers[id(share)]
        return shares

    def _note(self, assignment: Assignment) -> None:
        """Note what changes with an assignment."""
        before, self._assignment = self._assignment, assignment
        for at, series in enumerate(self._split):
            if before is None or before.split[at] != assignment.split[at]:
                series.add(assignment.split[at])
        for stage, series in self._threads.items():
            count = getattr(assignment.threads, stage)
            if before is None or getattr(before.threads, stage) != count:
                series.add(count)

    def _number(self, shares: Sequence[Share], first: int) -> None:
        for number, share in enumerate(shares, first):
            self._numbers[id(share)] = number

    def _slice(self, name: int, share: Share) -> Track:
        return self._trace.track().begin(
            name, share.work.step, share.trainer, self._numbers[id(share)], len(share.units)
        )


def watched(trace: Trace, work: Chunk) -> Worked | None:
    """Note in the track of each thread of a team which calls of `Workers.run` it worked at.

    A slice is named after the function that shares its work out, and has the step of what the calling thread is doing.
    One for each such call and thread: however many chunks there are, they cost the same.
    """
    outer = trace.track().open
    if not outer:
        return None
    what = (trace.number(_function(work)), *outer[-1][2:])

    def worked(began: int, ended: int) -> None:
        trace.track().add(began, ended, what)

    return worked


def _function(work: object) -> str:
    """`aggregate` of a function in `aggregate`, and of a partial function of it."""
    while isinstance(work, partial):
        work = work.func
    name = getattr(work, "__qualname__", None) or getattr(work, "__name__", type(work).__name__)
    return str(name).split(".<locals>")[0].replace("._", ".").lstrip("_")


def traced_emit(emit: Emit, trace: Trace) -> Emit:
    """Pass events on, and note the memory they tell of, decisions, and notices."""
    memory = trace.counter("memory", "bytes")

    def hear(event: Event) -> None:
        match event:
            case StepGroup():
                memory.add(event.memory_bytes)
            case Balanced():
                trace.mark(event.reason)
            case Notice():
                trace.mark(event.text)
        emit(event)

    return hear


def listen(trainers: Sequence[Trainer], trace: Trace, timeout_s: float) -> None:
    """Ask the devices that can for what their queues run, and for when their threads work.

    Raises
    ------
    HyrtError
        Naming the device, when it fails or takes longer than `timeout_s`.
    """
    for trainer in trainers:
        ask = getattr(trainer.device, "trace", None)
        if ask is not None:
            hear: QueueListener = partial(trace.hear, trainer.name)
            call_device(trainer.name, "trace", partial(ask, hear), timeout_s=timeout_s, fault=DeviceFault)
        watch = getattr(trainer.device, "watch", None)
        if watch is not None:
            watch(partial(watched, trace))
