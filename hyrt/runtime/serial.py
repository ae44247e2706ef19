"""The stages one after the other, for comparison and for debugging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hyrt.errors import StageFailure
from hyrt.runtime.pipeline import describe
from hyrt.runtime.stages import Stages, StepWork


def serial_steps(stages: Stages, steps: Iterable[int]) -> Iterator[StepWork]:
    """Yield the same steps as `Pipeline.steps`, each sampled, loaded, transferred and propagated in turn.

    Raises
    ------
    StageFailure
        Naming stage, device and step.
    """
    for step in steps:
        where = "sample on cpu"
        try:
            work = stages.sample(step)
            where = "load on cpu"
            stages.load(work)
            for index, trainer in enumerate(stages.trainers):
                where = f"transfer on {trainer.name}"
                staged = stages.transfer(work, index)
                where = f"propagate on {trainer.name}"
                stages.propagate(work, index, staged)
        except Exception as error:
            raise StageFailure(f"error in {where} at step {step}: {describe(error)}") from error
        yield work
        work.release()
        for index, trainer in enumerate(stages.trainers):
            try:
                stages.update(index)
            except Exception as error:
                where = f"synchronize on {trainer.name}"
                raise StageFailure(f"error in {where} at step {step}: {describe(error)}") from error
