"""Steps on threads: each stage on its own, joined by bounded channels, or all stages in turn on one.

In the pipeline, while step i propagates, i+1 is transferred, i+2 loaded and i+3 sampled. Credits bound the
steps in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from hyrt.errors import StageFailure, StepStopped
from hyrt.flow.channel import Channel, ChannelClosed
from hyrt.flow.queues import Queues
from hyrt.flow.stage_threads import Place, StageThreads
from hyrt.observe.hook import Hook
from hyrt.pipeline.serial import SerialSteps
from hyrt.pipeline.shares import Share, StepWork
from hyrt.pipeline.stages import Stages


class _ThreadedSteps:
    """What both ways to do steps on threads have in common: the threads, and how they fail."""

    def __init__(
        self,
        stages: Stages,
        steps: Sequence[int],
        *,
        stall_timeout_s: float,
        on_stall: Callable[[str], None] = lambda stacks: None,
        hooks: Sequence[Hook] = (),
        watch: Callable[[str], Callable[[int], None] | None] = lambda channel: None,
    ) -> None:
        def failed(failure: BaseException) -> None:
            for hook in hooks:
                hook.fail(failure)

        def cause() -> BaseException | None:
            return next((found for hook in hooks if (found := hook.stall()) is not None), None)

        self._stages = stages
        self._steps = steps
        self._threads = StageThreads(
            stall_timeout_s=stall_timeout_s,
            on_stall=on_stall,
            on_failure=failed,
            cause_of_stall=cause,
            watch=watch,
            on_close=stages.end,
        )
        self.guarded = self._threads.waiting
        """What the consumer does in the block has to end within the stall timeout too: `guarded(doing)`."""
        self.raise_failure = self._threads.raise_failure
        """Raise what has failed so far, if anything; for a consumer that is busy with something else."""

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every thread; one that does not end in time is a StageFailure that names it."""
        self._threads.close()


class Pipeline(_ThreadedSteps):
    """Runs steps through the stages and yields them in order.

    The consumer takes a step from `steps()`, makes the new master weights and asks for the next: asking lets
    every trainer take the weights and go on. The first failure of any stage ends every thread and is raised
    in the consumer.

    Parameters
    ----------
    stages
        The work.
    steps
        Which steps of the run, in order.
    depth
        Most steps in flight.
    stall_timeout_s
        How long nothing may move while the consumer waits.
    on_stall
        Called with all threads' stacks when that time is over.
    hooks
        Called with the number of items in the channels, and with the failure.
    """

    def __init__(
        self,
        stages: Stages,
        steps: Sequence[int],
        *,
        depth: int,
        stall_timeout_s: float,
        on_stall: Callable[[str], None] = lambda stacks: None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        def watch(channel: str) -> Callable[[int], None] | None:
            return next((heard for hook in hooks if (heard := hook.channel(channel)) is not None), None)

        super().__init__(
            stages, steps, stall_timeout_s=stall_timeout_s, on_stall=on_stall, hooks=hooks, watch=watch
        )
        threads = self._threads
        names = [trainer.name for trainer in stages.trainers]
        # What changes at one step acts on the first that is cut after it.
        stages.schedule.ahead = depth
        # Credits, one for each step in flight, bound what the channels hold; they need no bound beyond it. A
        # share to do again goes the same way.
        self._credits: Channel[Share | None] = threads.channel("credits", depth + 1)
        for _ in range(depth):
            self._credits.put(None)
        most = depth * stages.most_times
        self._sampled: Channel[Share] = threads.channel("sampled", most * len(names))
        self._loaded: list[Channel[Share]] = [threads.channel(f"loaded.{name}", most) for name in names]
        self._staged: list[Channel[tuple[Share, Any]]] = [
            threads.channel(f"staged.{name}", most) for name in names
        ]
        self._done: list[Channel[Share]] = [threads.channel(f"done.{name}", most) for name in names]
        # After a share: those to do again, then None, to go on: after a step's last, with the new weights.
        self._next: list[Channel[Share | None]] = [threads.channel(f"next.{name}", depth) for name in names]
        threads.add("hyrt.sample", "sample", "cpu", self._sample)
        threads.add("hyrt.load", "load", "cpu", self._load)
        for i, name in enumerate(names):
            threads.add(f"hyrt.transfer.{name}", "transfer", name, partial(self._transfer, i))
            threads.add(f"hyrt.propagate.{name}", "propagate", name, partial(self._propagate, i))

    def steps(self) -> Iterator[StepWork]:
        """Steps whose gradients are there, in order; one of several time steps after each of them.

        Raises
        ------
        StageFailure
            Naming stage, device and step, when a stage failed.
        Stalled
            When nothing moved for the guard's timeout.
        """
        for step in self._steps:
            has_more_times = True
            while has_more_times:
                work = self._take(step, range(len(self._done)))
                while shares := self._stages.again(work):
                    for share in shares:
                        self._credits.put(share)
                        self._take(step, [share.trainer])
                yield work
                has_more_times = work.has_more_times
                if not has_more_times:
                    work.release()
                for channel in self._next:
                    channel.put(None)
            self._credits.put(None)
        self._credits.close_sender()
        # The trainers take the last weights too: who fails at it, or hangs, fails the run.
        with self._threads.waiting():
            for done in self._done:
                for _ in done:
                    raise AssertionError("a share of no step")

    def _take(self, step: int, trainers: Sequence[int]) -> StepWork:
        """Wait until each of some trainers is through with a share of a step."""
        try:
            with self._threads.waiting():
                shares = [self._done[index].get() for index in trainers]
        except ChannelClosed:
            raise StageFailure(f"the pipeline ended before step {step}: a stage thread has ended") from None
        work = shares[0].work
        work.time = shares[0].time
        return work

    def queues(self) -> Queues:
        """What the channels have seen so far."""
        at_s = time.perf_counter()
        sampled = self._sampled.statistics()
        loaded, staged, done = (
            [channel.statistics() for channel in channels]
            for channels in (self._loaded, self._staged, self._done)
        )
        num = len(loaded)
        channels: list[Channel[Any]] = [self._sampled, *self._loaded, *self._staged, *self._done]
        names = [channel.name for channel in channels]
        seen = dict(zip(names, [sampled, *loaded, *staged, *done], strict=True))
        return Queues(
            at_s=at_s,
            blocked_s={
                "sample.input": self._credits.statistics().receive_blocked_s,
                "sample.output": sampled.send_blocked_s,
                "load.input": sampled.receive_blocked_s,
                "load.output": sum(s.send_blocked_s for s in loaded),
                "transfer.input": sum(s.receive_blocked_s for s in loaded) / num,
                "transfer.output": sum(s.send_blocked_s for s in staged) / num,
                "propagate.input": sum(s.receive_blocked_s for s in staged) / num,
                "synchronize.input": sum(s.receive_blocked_s for s in done) / num,
            },
            item_s={name: statistics.item_s for name, statistics in seen.items()},
            depth={name: statistics.capacity for name, statistics in seen.items()},
        )

    # The stages, each on its own thread.

    def _sample(self, place: Place) -> None:
        steps = iter(self._steps)
        for again in self._credits:
            if again is not None:
                shares = [again]
            elif (step := next(steps, None)) is not None:
                place.at(step)
                shares = self._stages.cut(step)
            else:
                continue
            for share in shares:
                place.at(share.work.step)
                self._stages.sample(share)
                self._sampled.put(share)
        self._sampled.close_sender()

    def _load(self, place: Place) -> None:
        def arriving() -> Iterator[Share]:
            for share in self._sampled:
                place.at(share.work.step)
                yield share

        for shares in self._stages.load.together(arriving()):
            self._stages.load.fetch(shares)
            for share in shares:
                self._stages.load(share)
                if share.is_again:
                    # It overtakes the next steps: its trainer waits for it.
                    self._next[share.trainer].put(share)
                else:
                    self._loaded[share.trainer].put(share)
        for channel in self._loaded:
            channel.close_sender()

    def _transfer(self, index: int, place: Place) -> None:
        for share in self._loaded[index]:
            place.at(share.work.step)
            self._staged[index].put((share, self._stages.transfer(share)))
        self._staged[index].close_sender()

    def _propagate(self, index: int, place: Place) -> None:
        for share, staged in self._staged[index]:
            step = share.work.step
            place.at(step)
            self._stages.propagate(share, staged)
            del staged
            self._done[index].put(share)
            while (again := self._next[index].get()) is not None:
                place.at(step, "transfer")
                staged = self._stages.transfer(again)
                place.at(step)
                self._stages.propagate(again, staged)
                del staged
                self._done[index].put(again)
            if share.is_of_last_time:
                place.at(step, "synchronize")
                self._stages.update(index, step)
        self._done[index].close_sender()


class GuardedSteps(_ThreadedSteps):
    """`SerialSteps` on a thread of their own, so that a run ends as one through `Pipeline` does.

    While the consumer makes new weights, nothing is under way. What the constructor and the methods take,
    return and raise is as in `Pipeline`.
    """

    def __init__(
        self,
        stages: Stages,
        steps: Sequence[int],
        *,
        stall_timeout_s: float,
        on_stall: Callable[[str], None] = lambda stacks: None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        super().__init__(stages, steps, stall_timeout_s=stall_timeout_s, on_stall=on_stall, hooks=hooks)
        self._done: Channel[StepWork] = self._threads.channel("done", 1)
        self._next: Channel[None] = self._threads.channel("next", 1)
        self._is_stopped = False
        self._threads.add("hyrt.steps", "sample", "cpu", self._run)
        self.moved = self._threads.moved
        """Called where something of a long step is done, so that it does not count as a stall."""

    def steps(self) -> Iterator[StepWork]:
        """The same steps as `Pipeline.steps`; the next one begins when it is asked for."""
        for step in self._steps:
            try:
                with self._threads.waiting():
                    work = self._done.get()
            except ChannelClosed:
                if self._is_stopped:
                    raise StepStopped from None
                raise StageFailure(f"the steps ended before step {step}: their thread has ended") from None
            yield work
            self._next.put(None)
        # The trainer takes the last weights, too.
        with self._threads.waiting():
            for _ in self._done:
                raise AssertionError("a step too many")

    def queues(self) -> None:
        """No channel holds a mini-batch."""

    def _run(self, place: Place) -> None:
        def at(stage: str, device: str, step: int) -> None:
            place.device = device
            place.at(step, stage)

        try:
            for work in SerialSteps(self._stages, self._steps, at).steps():
                self._done.put(work)
                self._next.get()
        except StepStopped:
            self._is_stopped = True
        self._done.close_sender()
