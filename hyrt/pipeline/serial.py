"""The stages one after the other, for comparison and for debugging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hyrt.errors import StageFailure, describe
from hyrt.pipeline.shares import StepWork
from hyrt.pipeline.stages import Stages


def serial_steps(stages: Stages, steps: Iterable[int]) -> Iterator[StepWork]:
    """Yield the same steps as `Pipeline.steps`, each sampled, loaded, transferred and propagated in turn.

    Raises
    ------
    StageFailure
        Naming stage, device and step.
    """
    for step in steps:
        with _named("sample on cpu", step):
            shares = stages.cut(step)
        work = shares[0].work
        while shares:
            for share in shares:
                with _named("sample on cpu", step):
                    stages.sample(share)
                with _named("load on cpu", step):
                    stages.load(share)
                name = stages.trainers[share.trainer].name
                with _named(f"transfer on {name}", step):
                    staged = stages.transfer(share)
                with _named(f"propagate on {name}", step):
                    stages.propagate(share, staged)
                del staged
            shares = stages.again(work)
        yield work
        work.release()
        for index, trainer in enumerate(stages.trainers):
            with _named(f"synchronize on {trainer.name}", step):
                stages.update(index, step)


@contextmanager
def _named(where: str, step: int) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # As in the pipeline: what asks a thread to exit must not end the run as if all were well.
        raise StageFailure(f"error in {where} at step {step}: {describe(error)}") from error
