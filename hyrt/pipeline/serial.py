"""The stages one after the other: for steps with nothing to overlap, for comparison and for debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Self

from hyrt.errors import StageFailure, StepStopped, describe
from hyrt.pipeline.shares import Share, StepWork
from hyrt.pipeline.stages import Stages


class SerialSteps:
    """Runs steps like `Pipeline`, without threads or channels: whoever drives one can drive the other.

    Parameters
    ----------
    stages
        The work.
    steps
        Which steps of the run, in order.
    at
        Called with the stage, the device and the step that begin.
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
        """The same steps as `Pipeline.steps`, each sampled, loaded, transferred and propagated in turn.

        Raises
        ------
        StageFailure
            Naming stage, device and step.
        StepStopped
            If the run is asked to stop, and what is done of a step is kept.
        """
        for step in self._steps:
            with self._named("sample", "cpu", step):
                shares = self._stages.cut(step)
            work = shares[0].work
            for number, share in enumerate(self._finished(shares), start=1):
                if number % len(self._stages.trainers):
                    continue
                work.time = share.time
                while again := self._stages.again(work):
                    for _ in self._finished(again):
                        """Its result is in the step."""
                yield work
            work.release()
            for index, trainer in enumerate(self._stages.trainers):
                with self._named("synchronize", trainer.name, step):
                    self._stages.update(index, step)

    def queues(self) -> None:
        """There are no channels to tell of."""

    def guarded(self, doing: str) -> AbstractContextManager[None]:
        """The consumer's work is not watched."""
        return nullcontext()

    def raise_failure(self) -> None:
        """What fails is raised where it fails."""

    def _sampled(self, shares: Iterable[Share]) -> Iterator[Share]:
        """The shares, each sampled when it is asked for."""
        for share in shares:
            with self._named("sample", "cpu", share.work.step):
                self._stages.sample(share)
            yield share

    def _finished(self, shares: Sequence[Share]) -> Iterator[Share]:
        """The shares, each through all stages when it is given."""
        for together in self._stages.load.together(self._sampled(shares)):
            with self._named("load", "cpu", together[0].work.step):
                self._stages.load.fetch(together)
            for share in together:
                self._finish(share)
                yield share

    def _finish(self, share: Share) -> None:
        """Load, transfer and propagate a share."""
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
        except (KeyboardInterrupt, StepStopped):
            raise
        except BaseException as error:
            # As in the pipeline: what asks a thread to exit must not end the run as if all were well.
            why = describe(error).removeprefix(f"{device}: ")
            raise StageFailure(f"error in {stage} on {device} at step {step}: {why}") from error
