"""The four stages on threads of their own, joined by bounded channels.

While step i propagates, i+1 is transferred, i+2 loaded and i+3 sampled. Credits bound the steps in flight. The first
failure of any stage fails every channel, ends every thread and is raised in the consumer.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from hyrt.errors import StageFailure, Stalled, describe
from hyrt.flow.channel import Channel, ChannelClosed
from hyrt.flow.queues import Queues
from hyrt.flow.watchdog import NoProgressGuard
from hyrt.observe.hook import Hook
from hyrt.pipeline.shares import Share, StepWork
from hyrt.pipeline.stages import Stages

# A healthy stage ends within one step's work after its channels fail; five seconds is the promise to the user.
_JOIN_S = 5.0
# One that has hung for the guard's timeout will hardly come back; the others end at once.
_JOIN_AFTER_STALL_S = 1.0


class Pipeline:
    """Runs steps through the stages and yields them in order.

    The consumer takes a step from `steps()`, makes the new master weights and asks for the next: asking lets every
    trainer take the weights and go on.

    Parameters
    ----------
    stages
        The work.
    steps
        Which steps of the run, in order.
    depth
        Most steps in flight.
    stall_timeout_s
        For the no-progress guard.
    on_stall
        Called with all threads' stacks when the guard fails the run.
    hooks
        Hear what is in the channels, and the failure.
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
        self._stages = stages
        self._hooks = hooks
        self._steps = steps
        self._failure: BaseException | None = None
        self._failing = threading.Lock()
        self._consumer_waits = False
        self._is_closing = False
        self._recent: deque[str] = deque(maxlen=32)
        # What each thread works at, by its name; and the consumer, where it is guarded.
        self._doing: dict[str, str] = {}
        self._consumer_does = ""
        self._report_stall = on_stall
        self._timeout_s = stall_timeout_s
        trainers = [trainer.name for trainer in stages.trainers]
        # What changes at one step acts on the first that is cut after it.
        stages.schedule.ahead = depth
        # Credits, one for each step in flight, bound what the channels hold; they need no bound beyond it. A share to do
        # again goes the same way.
        self._credits: Channel[Share | None] = self._channel("credits", depth + 1)
        for _ in range(depth):
            self._credits.put(None)
        self._sampled: Channel[Share] = self._channel("sampled", depth * len(trainers))
        self._loaded: list[Channel[Share]] = [self._channel(f"loaded.{name}", depth) for name in trainers]
        self._staged: list[Channel[tuple[Share, Any]]] = [
            self._channel(f"staged.{name}", depth) for name in trainers
        ]
        self._done: list[Channel[Share]] = [self._channel(f"done.{name}", depth) for name in trainers]
        # After a step's share: shares to do again, then None, to take the new weights.
        self._next: list[Channel[Share | None]] = [self._channel(f"next.{name}", depth) for name in trainers]
        self._threads = [
            self._thread("sample", "cpu", self._sample),
            self._thread("load", "cpu", self._load),
        ]
        for i, trainer in enumerate(stages.trainers):
            self._threads.append(self._thread("transfer", trainer.name, self._transfer, i))
            self._threads.append(self._thread("propagate", trainer.name, self._propagate, i))
        self._guard = NoProgressGuard(
            stall_timeout_s, self._activity, lambda: self._consumer_waits, self._stalled
        )

    def _channel(self, name: str, capacity: int) -> Channel[Any]:
        watches = [watch for hook in self._hooks if (watch := hook.channel(name)) is not None]
        return Channel(name, capacity, watches[0] if watches else None)

    def __enter__(self) -> Pipeline:
        for thread in self._threads:
            thread.start()
        self._guard.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def steps(self) -> Iterator[StepWork]:
        """Steps whose gradients are there, in order.

        Raises
        ------
        StageFailure
            Naming stage, device and step, when a stage failed.
        Stalled
            When nothing moved for the guard's timeout.
        """
        for step in self._steps:
            work = self._take(step, range(len(self._done)))
            while shares := self._stages.again(work):
                for share in shares:
                    self._credits.put(share)
                    self._take(step, [share.trainer])
            yield work
            work.release()
            for channel in self._next:
                channel.put(None)
            self._credits.put(None)
        self._credits.close_sender()
        # The trainers take the last weights too: who fails at it, or hangs, fails the run.
        self._consumer_waits = True
        try:
            for done in self._done:
                for _ in done:
                    raise AssertionError("a share of no step")
        finally:
            self._consumer_waits = False

    def _take(self, step: int, trainers: Sequence[int]) -> StepWork:
        """Wait until each of some trainers is through with a share of a step."""
        self._consumer_waits = True
        try:
            shares = [self._done[index].get() for index in trainers]
        except ChannelClosed:
            raise StageFailure(f"the pipeline ended before step {step}: a stage thread has gone") from None
        finally:
            self._consumer_waits = False
        return shares[0].work

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """The consumer's own work in the block has to end within the stall timeout too."""
        self._consumer_does = doing
        self._consumer_waits = True
        try:
            yield
        finally:
            self._consumer_waits = False
            self._consumer_does = ""

    def queues(self) -> Queues:
        """What the channels have seen so far."""
        now = time.perf_counter()
        sampled = self._sampled.statistics()
        loaded = [channel.statistics() for channel in self._loaded]
        staged = [channel.statistics() for channel in self._staged]
        done = [channel.statistics() for channel in self._done]
        blocked_s = {
            "sample.input": self._credits.statistics().receive_blocked_s,
            "sample.output": sampled.send_blocked_s,
            "load.input": sampled.receive_blocked_s,
            "load.output": sum(s.send_blocked_s for s in loaded),
            "transfer.input": sum(s.receive_blocked_s for s in loaded) / len(loaded),
            "transfer.output": sum(s.send_blocked_s for s in staged) / len(staged),
            "propagate.input": sum(s.receive_blocked_s for s in staged) / len(staged),
            "synchronize.input": sum(s.receive_blocked_s for s in done) / len(done),
        }
        channels: list[Channel[Any]] = [self._sampled, *self._loaded, *self._staged, *self._done]
        seen = dict(
            zip((channel.name for channel in channels), [sampled, *loaded, *staged, *done], strict=True)
        )
        return Queues(
            at_s=now,
            blocked_s=blocked_s,
            item_s={name: statistics.item_s for name, statistics in seen.items()},
            depth={name: statistics.capacity for name, statistics in seen.items()},
        )

    def raise_failure(self) -> None:
        """Raise what has failed so far, if anything; for a consumer that is busy with something else."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End every thread.

        Raises
        ------
        StageFailure
            If a thread does not end in time; it is named.
        """
        self._is_closing = True
        self._guard.close()
        end = ChannelClosed("the pipeline is closed")
        for channel in self._channels():
            channel.fail(end)
        join_s = _JOIN_AFTER_STALL_S if isinstance(self._failure, Stalled) else _JOIN_S
        deadline = time.monotonic() + join_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            message = f"thread {', '.join(stuck)} did not end within {join_s:g} s"
            if self._failure is not None:
                raise StageFailure(f"{self._failure}; {message}") from self._failure
            raise StageFailure(message)

    # The stages, each on its own thread.

    def _sample(self, at: Callable[..., None]) -> None:
        steps = iter(self._steps)
        for again in self._credits:
            if again is not None:
                shares = [again]
            elif (step := next(steps, None)) is not None:
                at(step)
                shares = self._stages.cut(step)
            else:
                continue
            for share in shares:
                at(share.work.step)
                self._stages.sample(share)
                self._sampled.put(share)
        self._sampled.close_sender()

    def _load(self, at: Callable[..., None]) -> None:
        for share in self._sampled:
            at(share.work.step)
            self._stages.load(share)
            if share.is_again:
                # It overtakes the next steps: its trainer waits for it.
                self._next[share.trainer].put(share)
            else:
                self._loaded[share.trainer].put(share)
        for channel in self._loaded:
            channel.close_sender()

    def _transfer(self, at: Callable[..., None], index: int) -> None:
        for share in self._loaded[index]:
            at(share.work.step)
            self._staged[index].put((share, self._stages.transfer(share)))
        self._staged[index].close_sender()

    def _propagate(self, at: Callable[..., None], index: int) -> None:
        for share, staged in self._staged[index]:
            step = share.work.step
            at(step)
            self._stages.propagate(share, staged)
            del staged
            self._done[index].put(share)
            while (again := self._next[index].get()) is not None:
                at(step, "transfer")
                staged = self._stages.transfer(again)
                at(step)
                self._stages.propagate(again, staged)
                del staged
                self._done[index].put(again)
            at(step, "synchronize")
            self._stages.update(index, step)
        self._done[index].close_sender()

    # Failing.

    def _thread(
        self, stage: str, device: str, body: Callable[..., None], *arguments: int
    ) -> threading.Thread:
        name = (
            f"hyrt.{stage}" if device == "cpu" and stage in ("sample", "load") else f"hyrt.{stage}.{device}"
        )

        def run() -> None:
            step, where = -1, f"{stage} on {device}"

            def at(now: int, doing: str = stage) -> None:
                nonlocal step, where
                step, where = now, f"{doing} on {device}"
                self._doing[name] = f"{where} at step {now}"
                self._recent.append(f"{where}: step {now}")

            try:
                body(at, *arguments)
            except BaseException as error:
                if error is self._failure or (isinstance(error, ChannelClosed) and self._is_closing):
                    return
                failure = StageFailure(f"error in {where} at step {step}: {describe(error)}")
                failure.__cause__ = error
                self._fail(failure)

        return threading.Thread(target=run, name=name, daemon=True)

    def _fail(self, failure: BaseException) -> None:
        with self._failing:
            if self._failure is not None:
                return
            self._failure = failure
        for hook in self._hooks:
            hook.fail(failure)
        for channel in self._channels():
            channel.fail(failure)

    def _stalled(self, stacks: str) -> None:
        recent = "\n".join(self._recent)
        last = self._recent[-1] if self._recent else "nothing has started"
        busy = self._busy()
        what = f"{', '.join(busy)} did not come back" if busy else f"last: {last}"
        stalled = Stalled(
            f"nothing moved for {self._timeout_s:g} s ({what}); "
            "raise runtime.stall_timeout_s if a step may take that long"
        )
        # The run fails whatever becomes of the report.
        self._fail(stalled)
        try:
            self._report_stall(f"{stalled}\n\n{stacks}\nlast pipeline events\n{recent}\n")
        except OSError as error:
            stalled.add_note(f"the stacks of all threads could not be written: {error}")

    def _busy(self) -> list[str]:
        """What those work at that wait for no channel."""
        frames = sys._current_frames()
        busy = [self._consumer_does] if self._consumer_does else []
        for thread in self._threads:
            frame = frames.get(thread.ident or 0)
            while frame is not None and frame.f_globals.get("__name__") != Channel.__module__:
                frame = frame.f_back
            if frame is None and thread.is_alive() and thread.name in self._doing:
                busy.append(self._doing[thread.name])
        return busy

    def _channels(self) -> list[Channel[Any]]:
        return [self._credits, self._sampled, *self._loaded, *self._staged, *self._done, *self._next]

    def _activity(self) -> int:
        return sum(s.sent + s.received for s in (channel.statistics() for channel in self._channels()))
