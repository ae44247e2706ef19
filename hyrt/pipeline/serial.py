"""The stages one after the other, for comparison and for debugging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Self

from hyrt.errors import StageFailure, describe
from hyrt.pipeline.shares import StepWork
from hyrt.pipeline.stages import Stages


class SerialSteps:
    """Runs steps like `Pipeline`, without threads or channels: whoever drives one can drive the other.

    Parameters
    ----------
    stages
        The work.
    steps
        Which steps of the run, in order.
    """

    def __init__(self, stages: Stages, steps: Iterable[int]) -> None:
        self._stages = stages
        self._steps = steps

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
        """
        for step in self._steps:
            with _named("sample", "cpu", step):
                shares = self._stages.cut(step)
            work = shares[0].work
            while shares:
                for share in shares:
                    with _named("sample", "cpu", step):
                        self._stages.sample(share)
                    with _named("load", "cpu", step):
                        self._stages.load(share)
                    name = self._stages.trainers[share.trainer].name
                    with _named("transfer", name, step):
                        staged = self._stages.transfer(share)
                    with _named("propagate", name, step):
                        self._stages.propagate(share, staged)
                    del staged
                shares = self._stages.again(work)
            yield work
            work.release()
            for index, trainer in enumerate(self._stages.trainers):
                with _named("synchronize", trainer.name, step):
                    self._stages.update(index, step)

    def queues(self) -> None:
        """There are no channels to tell of."""

    def guarded(self, doing: str) -> AbstractContextManager[None]:
        """The consumer's work is not watched."""
        return nullcontext()

    def raise_failure(self) -> None:
        """What fails is raised where it fails."""


@contextmanager
def _named(stage: str, device: str, step: int) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # As in the pipeline: what asks a thread to exit must not end the run as if all were well.
        why = describe(error).removeprefix(f"{device}: ")
        raise StageFailure(f"error in {stage} on {device} at step {step}: {why}") from error
