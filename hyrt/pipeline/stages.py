"""Stages of a run, without threads or channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hyrt_perfmodel.policy import Assignment, Threads

from hyrt.checks import check_ids
from hyrt.errors import ArgumentError, ConfigError
from hyrt.pipeline.load import Loader, LoadStage
from hyrt.pipeline.propagate import PropagateStage
from hyrt.pipeline.recovery import Recovery
from hyrt.pipeline.sample import SampleStage
from hyrt.pipeline.synchronize import UpdateStage
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.transfer import TransferStage
from hyrt.pipeline.work_items import ALL, RankSlice, Schedule, StepWork, WorkShare, cut
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.sampler import Sampler
from hyrt.telemetry.hooks import Hook


class Stages:
    """Work of each stage on a share, used by both the pipeline and the serial loop.

    `split` has the units per trainer in a step, `train_threads` the threads of each trainer whose threads are
    adjustable, and `counts` the names of the objective's counts. `continue_on_loss` and `notify` are as in
    `Recovery`. `part` is this process's part of every step in a run of several processes.
    """

    def __init__(
        self,
        sampler: Sampler,
        loader: Loader,
        trainers: Sequence[Trainer],
        split: Sequence[int],
        parameters: Sequence[torch.Tensor],
        sample_workers: Workers,
        load_workers: Workers,
        *,
        counts: Sequence[str],
        continue_on_loss: bool = False,
        notify: Callable[[str], None] = lambda text: None,
        train_threads: int = 1,
        hooks: Sequence[Hook] = (),
        part: RankSlice = ALL,
    ) -> None:
        self.trainers = trainers = list(trainers)
        for trainer in trainers:
            trainer.hooks = hooks
        threads = Threads(sample=sample_workers.count, load=load_workers.count, train=train_threads)
        self.schedule = Schedule(Assignment(split=tuple(split), threads=threads))
        self._sampler = sampler
        self._hooks = hooks
        self._part = part
        self._recovery = Recovery(trainers, self.schedule, continue_on_loss=continue_on_loss, notify=notify)
        self.sample = SampleStage(sampler, trainers, self.schedule, sample_workers, self._recovery)
        self.load = LoadStage(loader, trainers, self.schedule, load_workers, part)
        self.transfer = TransferStage(trainers, self._recovery)
        self.propagate = PropagateStage(trainers, self.schedule, parameters, counts, self._recovery)
        self.update = UpdateStage(trainers, parameters, self._recovery)

    @property
    def split(self) -> list[int]:
        """Number of units per trainer in steps that have not been split yet."""
        return list(self.schedule.latest.split)

    def named_split(self, assignment: Assignment) -> dict[str, int]:
        """Return the number of units of a step by trainer name."""
        names = (trainer.name for trainer in self.trainers)
        return dict(zip(names, assignment.split, strict=True))

    @property
    def max_time_steps(self) -> int:
        return self._part.max_time_steps

    @property
    def is_part_of_steps(self) -> bool:
        """Whether other processes compute other parts of each step."""
        return self._part.num_processes > 1

    @property
    def simulated(self) -> tuple[str, ...]:
        return tuple(trainer.name for trainer in self.trainers if trainer.device.info.simulated)

    def cut(self, step: int) -> list[WorkShare]:
        """Split a step into one share per trainer, for each of its time steps in turn."""
        assignment = self.schedule.of(step)
        for hook in self._hooks:
            hook.on_step_split(assignment)
        max_units = sum(assignment.split) * self._part.num_processes
        units = _checked_units(self._sampler, step, max_units)
        local_units = self._part.local_units(step, units)
        work = StepWork(step, num_times=len(local_units))
        for time, of_time in enumerate(local_units):
            for index, piece in enumerate(cut(of_time, assignment.split)):
                work.shares.append(WorkShare(work, index, piece, len(work.shares), time=time))
        return list(work.shares)

    def end(self) -> None:
        """Stop splitting steps and fetching rows, and wake up threads that wait for other processes."""
        self._part.end()
        self.load.end()

    def retry(self, work: StepWork) -> list[WorkShare]:
        """Return the shares of a step to retry (see `Recovery.retry`); empty if no share has failed."""
        return self._recovery.retry(work)


def _checked_units(sampler: Sampler, step: int, max_units: int) -> Ids:
    """Return the units of a step, which are checked because a third-party sampler may return anything."""
    kind = type(sampler)
    try:
        units: Ids = check_ids("units", sampler.units(step), 2**63 - 1, "units", distinct=True)
    except ArgumentError as error:
        raise ConfigError(
            f"the sampler {kind.__module__}.{kind.__name__} returned invalid units for step {step}: {error}"
        ) from error
    if len(units) > max_units:
        raise ConfigError(
            f"the sampler {kind.__module__}.{kind.__name__} returned {len(units)} units for step {step}, "
            f"more than the {max_units} that it declared: return fewer from units(), or declare more in "
            "units_per_step"
        )
    return units
