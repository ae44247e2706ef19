"""Execution of the pipeline's stages, on threads or serially on the calling thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Self

from hyrt.errors import StageError, StepInterrupted, describe_error
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.work_items import StepWork, WorkShare
from hyrt.runtime.stage_threads import Channel, ChannelClosedError, QueueSnapshot, StageProgress, StageThreads
from hyrt.telemetry.hooks import Hook


class SerialSteps:
    """Serial execution of steps, without threads or channels, with the same interface as `Pipeline`.

    `at` is called before each stage with the names of the stage and the device, and the step.
    """

    def __init__(
        self,
        stages: Stages,
        steps: Iterable[int],
        at: Callable[[str, str, int], None] = lambda stage, device, step: None,
    ) -> None:
        self._stages = stages
        self._steps = steps
        self._at = at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def steps(self) -> Iterator[StepWork]:
        """Yield the same steps as `Pipeline.steps`, but run the four stages one after the other.

        Raises StageError, which names stage, device and step, if a stage fails, and StepInterrupted if the
        run must stop and the completed part of a step has been saved.
        """
        for step in self._steps:
            with self._named("sample", "cpu", step):
                shares = self._stages.cut(step)
            work = shares[0].work
            for number, share in enumerate(self._finished(shares), start=1):
                if number % len(self._stages.trainers):
                    continue
                work.time = share.time
                while retry_shares := self._stages.retry(work):
                    for _ in self._finished(retry_shares):
                        """Its result is in the step."""
                yield work
            work.release()
            for index, trainer in enumerate(self._stages.trainers):
                with self._named("synchronize", trainer.name, step):
                    self._stages.update(index, step)

    def queues(self) -> None:
        """Return None, because there are no channels."""

    def guarded(self, doing: str) -> AbstractContextManager[None]:
        """Return a context that does nothing, because the consumer's work has no time limit."""
        return nullcontext()

    def raise_failure(self) -> None:
        """Do nothing, because failures are raised directly."""

    def _sampled(self, shares: Iterable[WorkShare]) -> Iterator[WorkShare]:
        """Yield the shares, and sample each share when it is requested."""
        for share in shares:
            with self._named("sample", "cpu", share.work.step):
                self._stages.sample(share)
            yield share

    def _finished(self, shares: Sequence[WorkShare]) -> Iterator[WorkShare]:
        """Yield the shares, each after all of its stages have run."""
        for together in self._stages.load.group_shares(self._sampled(shares)):
            with self._named("load", "cpu", together[0].work.step):
                self._stages.load.fetch(together)
            for share in together:
                self._finish(share)
                yield share

    def _finish(self, share: WorkShare) -> None:
        step, name = share.work.step, self._stages.trainers[share.trainer].name
        with self._named("load", "cpu", step):
            self._stages.load(share)
        with self._named("transfer", name, step):
            staged = self._stages.transfer(share)
        with self._named("propagate", name, step):
            self._stages.propagate(share, staged)

    @contextmanager
    def _named(self, stage: str, device: str, step: int) -> Iterator[None]:
        self._at(stage, device, step)
        try:
            yield
        except (KeyboardInterrupt, StepInterrupted):
            raise
        except BaseException as error:
            # As in the pipeline, convert SystemExit too, which would end the run as if it had succeeded.
            reason = describe_error(error).removeprefix(f"{device}: ")
            raise StageError(f"error in {stage} on {device} at step {step}: {reason}") from error


class _ThreadedSteps:
    """Base class of step execution on threads, which starts the threads and reports their failures."""

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
                hook.on_pipeline_failure(failure)

        def cause() -> BaseException | None:
            return next((found for hook in hooks if (found := hook.on_stall()) is not None), None)

        self._stages = stages
        self._steps = steps
        self._threads = StageThreads(
            stall_timeout_s=stall_timeout_s,
            on_stall=on_stall,
            on_failure=failed,
            explain_stall=cause,
            channel_observer=watch,
            on_close=stages.end,
        )
        self.guarded = self._threads.consumer_waiting
        """Context manager `guarded(doing)` that applies the stall timeout to the consumer's work."""
        self.raise_failure = self._threads.raise_failure
        """Method that raises the first failure so far, if any, for a consumer with other work."""

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all threads; raise StageError with the name of a thread that does not end in time."""
        self._threads.close()


class Pipeline(_ThreadedSteps):
    """Concurrent execution of steps, which are yielded in order.

    The consumer takes a step from `steps()`, computes the new master weights and requests the next step.
    Every trainer then loads the new weights and continues. The first failure of any stage ends all threads
    and is raised in the consumer.

    At most `depth` steps are in flight. After `stall_timeout_s` seconds without progress while the consumer
    waits, `on_stall` is called with the stacks of all threads. `hooks` are notified of the number of items in
    the channels and of the failure.
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
            return next(
                (observer for hook in hooks if (observer := hook.channel_observer(channel)) is not None), None
            )

        super().__init__(
            stages, steps, stall_timeout_s=stall_timeout_s, on_stall=on_stall, hooks=hooks, watch=watch
        )
        threads = self._threads
        names = [trainer.name for trainer in stages.trainers]
        # A changed assignment applies to the first step that has not been split yet.
        stages.schedule.ahead = depth
        # The credits bound the number of steps in flight, so the channels need no smaller bound. Retried
        # shares are sent through the credits channel too.
        self._credits: Channel[WorkShare | None] = threads.add_channel("credits", depth + 1)
        for _ in range(depth):
            self._credits.put(None)
        capacity = depth * stages.max_time_steps
        self._sampled: Channel[WorkShare] = threads.add_channel("sampled", capacity * len(names))
        self._loaded: list[Channel[WorkShare]] = [
            threads.add_channel(f"loaded.{name}", capacity) for name in names
        ]
        self._staged: list[Channel[tuple[WorkShare, Any]]] = [
            threads.add_channel(f"staged.{name}", capacity) for name in names
        ]
        self._done: list[Channel[WorkShare]] = [
            threads.add_channel(f"done.{name}", capacity) for name in names
        ]
        # After each share, a trainer receives the shares to retry, and then None to continue. After the last
        # share of a step, None also means that new weights are available.
        self._next: list[Channel[WorkShare | None]] = [
            threads.add_channel(f"next.{name}", depth) for name in names
        ]
        threads.add_thread("hyrt.sample", "sample", "cpu", self._sample)
        threads.add_thread("hyrt.load", "load", "cpu", self._load)
        for i, name in enumerate(names):
            threads.add_thread(f"hyrt.transfer.{name}", "transfer", name, partial(self._transfer, i))
            threads.add_thread(f"hyrt.propagate.{name}", "propagate", name, partial(self._propagate, i))

    def steps(self) -> Iterator[StepWork]:
        """Yield steps with complete gradients, in order, and each step once per time step.

        Raises StageError, which names stage, device and step, if a stage fails, and StallError if there is no
        progress within the stall timeout.
        """
        for step in self._steps:
            has_more_time_steps = True
            while has_more_time_steps:
                work = self._take(step, range(len(self._done)))
                while shares := self._stages.retry(work):
                    for share in shares:
                        self._credits.put(share)
                        self._take(step, [share.trainer])
                yield work
                has_more_time_steps = work.has_more_time_steps
                if not has_more_time_steps:
                    work.release()
                for channel in self._next:
                    channel.put(None)
            self._credits.put(None)
        self._credits.close_sender()
        # The trainers also load the last weights: if this fails or hangs, the run fails.
        with self._threads.consumer_waiting():
            for done in self._done:
                for _ in done:
                    raise AssertionError("a share of no step")

    def _take(self, step: int, trainers: Sequence[int]) -> StepWork:
        """Wait until each of the given trainers has finished a share of a step."""
        try:
            with self._threads.consumer_waiting():
                shares = [self._done[index].get() for index in trainers]
        except ChannelClosedError:
            raise StageError(f"the pipeline ended before step {step}: a stage thread has ended") from None
        work = shares[0].work
        work.time = shares[0].time
        return work

    def queues(self) -> QueueSnapshot:
        """Return the channel statistics so far."""
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
        return QueueSnapshot(
            time_s=at_s,
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
            capacity={name: statistics.capacity for name, statistics in seen.items()},
        )

    # Functions that the stage threads run.

    def _sample(self, place: StageProgress) -> None:
        steps = iter(self._steps)
        for retry_share in self._credits:
            if retry_share is not None:
                shares = [retry_share]
            elif (step := next(steps, None)) is not None:
                place.begin_step(step)
                shares = self._stages.cut(step)
            else:
                continue
            for share in shares:
                place.begin_step(share.work.step)
                self._stages.sample(share)
                self._sampled.put(share)
        self._sampled.close_sender()

    def _load(self, place: StageProgress) -> None:
        def arriving() -> Iterator[WorkShare]:
            for share in self._sampled:
                place.begin_step(share.work.step)
                yield share

        for shares in self._stages.load.group_shares(arriving()):
            self._stages.load.fetch(shares)
            for share in shares:
                self._stages.load(share)
                if share.is_retry:
                    # A retried share skips the queue, because its trainer is waiting for it.
                    self._next[share.trainer].put(share)
                else:
                    self._loaded[share.trainer].put(share)
        for channel in self._loaded:
            channel.close_sender()

    def _transfer(self, index: int, place: StageProgress) -> None:
        for share in self._loaded[index]:
            place.begin_step(share.work.step)
            self._staged[index].put((share, self._stages.transfer(share)))
        self._staged[index].close_sender()

    def _propagate(self, index: int, place: StageProgress) -> None:
        for share, staged in self._staged[index]:
            step = share.work.step
            place.begin_step(step)
            self._stages.propagate(share, staged)
            del staged
            self._done[index].put(share)
            while (retry_share := self._next[index].get()) is not None:
                place.begin_step(step, "transfer")
                staged = self._stages.transfer(retry_share)
                place.begin_step(step)
                self._stages.propagate(retry_share, staged)
                del staged
                self._done[index].put(retry_share)
            if share.is_last_time_step:
                place.begin_step(step, "synchronize")
                self._stages.update(index, step)
        self._done[index].close_sender()


class GuardedSteps(_ThreadedSteps):
    """Execution of `SerialSteps` on a separate thread, so that a run ends in the same way as with `Pipeline`.

    No stage runs while the consumer computes new weights. Parameters, results and exceptions are as in
    `Pipeline`.
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
        self._done: Channel[StepWork] = self._threads.add_channel("done", 1)
        self._next: Channel[None] = self._threads.add_channel("next", 1)
        self._is_stopped = False
        self._threads.add_thread("hyrt.steps", "sample", "cpu", self._run)
        self.moved = self._threads.record_progress
        """Callback when a part of a long step is done, so that the step does not count as a stall."""

    def steps(self) -> Iterator[StepWork]:
        """Yield the same steps as `Pipeline.steps`; the next step starts when it is requested."""
        for step in self._steps:
            try:
                with self._threads.consumer_waiting():
                    work = self._done.get()
            except ChannelClosedError:
                if self._is_stopped:
                    raise StepInterrupted from None
                raise StageError(f"the thread that runs the steps ended before step {step}") from None
            yield work
            self._next.put(None)
        # The trainer also loads the last weights.
        with self._threads.consumer_waiting():
            for _ in self._done:
                raise AssertionError("a step too many")

    def queues(self) -> None:
        """Return None, because there are no channels."""

    def _run(self, place: StageProgress) -> None:
        def at(stage: str, device: str, step: int) -> None:
            place.device = device
            place.begin_step(step, stage)

        try:
            for work in SerialSteps(self._stages, self._steps, at).steps():
                self._done.put(work)
                self._next.get()
        except StepInterrupted:
            self._is_stopped = True
        self._done.close_sender()
