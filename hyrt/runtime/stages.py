"""The four stages' work on one step, without threads or channels."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hyrt.device import Device, StepResult
from hyrt.runtime.load import InputPlan, Loader
from hyrt.sampling.block import Ids, MiniBatch
from hyrt.sampling.sampler import Sampler
from hyrt.workers import Workers


@dataclass(slots=True)
class Trainer:
    """A device with the form of input it takes, and the lock that keeps `transfer` and `update` apart."""

    device: Device
    plan: InputPlan
    quiet: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return self.device.info.name


@dataclass(slots=True)
class StepWork:
    """One step on its way through the pipeline.

    Parameters
    ----------
    step
        Of the run, counted from 0.
    batches
        One a trainer; None where its share is empty.
    results
        One a trainer, once propagated.
    seconds
        Work time by stage; of the slowest trainer for transfer and propagate.
    """

    step: int
    batches: list[MiniBatch | None]
    results: list[StepResult | None]
    seconds: dict[str, float]

    @property
    def num_edges(self) -> int:
        return sum(batch.num_edges for batch in self.batches if batch is not None)

    def note(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = max(self.seconds.get(stage, 0.0), seconds)

    def release(self) -> None:
        for batch in self.batches:
            if batch is not None:
                batch.release()


def cut(units: Ids, split: Sequence[int]) -> list[Ids]:
    """Cut a step's units into one piece a trainer.

    A short last step is cut in the proportions of the split.
    """
    ends = np.cumsum(split)
    if ends[-1] != len(units):
        ends = np.rint(ends * (len(units) / ends[-1])).astype(np.int64)
    starts = [0, *ends[:-1]]
    return [units[start:end] for start, end in zip(starts, ends, strict=True)]


class Stages:
    """What each stage does to a step; the pipeline and the serial loop both drive these.

    Parameters
    ----------
    sampler, loader, trainers
        Who does the work.
    split
        Units of a step for each trainer.
    parameters
        The master weights.
    sample_workers, load_workers
        The threads of the first two stages.
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
    ) -> None:
        self.trainers = list(trainers)
        self.split = list(split)
        self._parameters = list(parameters)
        self._sampler = sampler
        self._loader = loader
        self._sample_workers = sample_workers
        self._load_workers = load_workers

    def sample(self, step: int) -> StepWork:
        started = time.perf_counter()
        pieces = cut(self._sampler.units(step), self.split)
        batches = [
            self._sampler.sample(step, units, self._sample_workers, in_place=trainer.plan.in_place)
            if len(units)
            else None
            for trainer, units in zip(self.trainers, pieces, strict=True)
        ]
        return StepWork(step, batches, [None] * len(batches), {"sample": time.perf_counter() - started})

    def load(self, work: StepWork) -> None:
        started = time.perf_counter()
        for trainer, batch in zip(self.trainers, work.batches, strict=True):
            if batch is not None:
                self._loader.load(batch, trainer.plan, self._load_workers)
        work.note("load", time.perf_counter() - started)

    def transfer(self, work: StepWork, index: int) -> Any:
        batch = work.batches[index]
        if batch is None:
            return None
        trainer = self.trainers[index]
        with trainer.quiet:
            started = time.perf_counter()
            staged = trainer.device.transfer(batch)
            work.note("transfer", time.perf_counter() - started)
        return staged

    def propagate(self, work: StepWork, index: int, staged: Any) -> None:
        if work.batches[index] is None:
            work.results[index] = StepResult(loss_sum=0.0, correct=0, targets=0, normalizer=0.0, gradients=())
            return
        started = time.perf_counter()
        work.results[index] = self.trainers[index].device.propagate(staged)
        work.note("propagate", time.perf_counter() - started)

    def update(self, index: int) -> None:
        """Hand a trainer the master weights."""
        trainer = self.trainers[index]
        with trainer.quiet:
            trainer.device.update(self._parameters)
