"""The four stages' work on one step, without threads or channels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hyrt.device import Device, StepResult
from hyrt.errors import DeviceOutOfMemory, StageFailure, describe
from hyrt.runtime.load import InputPlan, Loader
from hyrt.runtime.shares import Failure, Share, StepWork, cut, recut
from hyrt.sampling.sampler import HopSampler, Sampler
from hyrt.workers import Workers

# How often one step's shares are cut smaller before the lack of memory ends the run.
_RETRIES = 3


@dataclass(slots=True)
class Trainer:
    """A device with the form of input it takes, and the lock that keeps `transfer` and `update` apart.

    Parameters
    ----------
    device
        With a replica of the model.
    plan
        In which form it gets its input.
    hops
        Samples its mini-batches on the device; None where the host does.
    quiet
        Held during `transfer` and `update`.
    lost
        What ended it, where the run goes on without it.
    """

    device: Device
    plan: InputPlan
    hops: HopSampler | None = None
    quiet: threading.Lock = field(default_factory=threading.Lock)
    lost: Exception | None = None

    @property
    def name(self) -> str:
        return self.device.info.name


class Stages:
    """What each stage does to a share; the pipeline and the serial loop both drive these.

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
    continue_on_loss
        Whether the other trainers take over from one that fails.
    notify
        Hears, in the consumer's thread, what was moved between trainers and why.
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
        continue_on_loss: bool = False,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.trainers = list(trainers)
        self.split = list(split)
        self._parameters = list(parameters)
        self._sampler = sampler
        self._loader = loader
        self._sample_workers = sample_workers
        self._load_workers = load_workers
        self._continue_on_loss = continue_on_loss
        self._notify = notify
        # A share that is done again is sampled and loaded by the consumer, beside the stages' threads.
        self._sampling = threading.Lock()
        self._loading = threading.Lock()

    def cut(self, step: int) -> list[Share]:
        """A step's shares, one a trainer."""
        work = StepWork(step)
        pieces = cut(self._sampler.units(step), self.split)
        work.shares = [Share(work, index, units) for index, units in enumerate(pieces)]
        return list(work.shares)

    def sample(self, share: Share) -> None:
        if not len(share.units):
            return
        trainer = self.trainers[share.trainer]
        with self._sampling:
            started = time.perf_counter()
            share.batch = self._sampler.sample(
                share.work.step,
                share.units,
                self._sample_workers,
                in_place=trainer.plan.in_place,
                hops=trainer.hops,
            )
            share.work.add("sample", time.perf_counter() - started)

    def load(self, share: Share) -> None:
        if share.batch is None:
            return
        with self._loading:
            started = time.perf_counter()
            self._loader.load(share.batch, self.trainers[share.trainer].plan, self._load_workers)
            share.work.add("load", time.perf_counter() - started)

    def transfer(self, share: Share) -> Any:
        """Stage a share on its device; None where there is nothing to propagate."""
        trainer = self.trainers[share.trainer]
        if share.batch is None:
            return None
        if trainer.lost is not None:
            share.failure = Failure(trainer.lost, "transfer", is_lost=True)
            return None
        with trainer.quiet:
            started = time.perf_counter()
            try:
                staged = trainer.device.transfer(share.batch)
            except Exception as error:
                self._note_failure(share, "transfer", error)
                return None
            share.work.note("transfer", time.perf_counter() - started)
        return staged

    def propagate(self, share: Share, staged: Any) -> None:
        """Fill in a share's result, or its failure."""
        trainer = self.trainers[share.trainer]
        if share.batch is None:
            share.result = StepResult(loss_sum=0.0, correct=0, targets=0, normalizer=0.0, gradients=())
            return
        if share.failure is None and trainer.lost is not None:
            share.failure = Failure(trainer.lost, "propagate", is_lost=True)
        if share.failure is not None:
            return
        started = time.perf_counter()
        try:
            share.result = trainer.device.propagate(staged)
        except Exception as error:
            self._note_failure(share, "propagate", error)
            return
        share.work.note("propagate", time.perf_counter() - started)

    def update(self, index: int) -> None:
        """Hand a trainer the master weights."""
        trainer = self.trainers[index]
        if trainer.lost is not None:
            return
        with trainer.quiet:
            try:
                trainer.device.update(self._parameters)
            except Exception as error:
                if not self._continue_on_loss:
                    raise
                trainer.lost = error

    def again(self, work: StepWork) -> list[Share]:
        """Cut what failed of a step anew: new shares, sampled and loaded; none where nothing failed.

        Called when every trainer is through with the step. Units keep their sampled edges, whoever trains them.

        Raises
        ------
        StageFailure
            Naming stage, device and step, when memory was short too often or no trainer is left.
        """
        failed = [share for share in work.shares if share.failure is not None and len(share.units)]
        made: list[Share] = []
        if any(share.failure is not None and not share.failure.is_lost for share in failed):
            work.redone += 1
        for share in failed:
            made += self._cut_again(share)
            # Done with: its units are in other shares now.
            share.units = share.units[:0]
        for share in made:
            self.sample(share)
            self.load(share)
        work.shares += made
        return made

    def _cut_again(self, share: Share) -> list[Share]:
        failure, work = share.failure, share.work
        assert failure is not None
        trainer = self.trainers[share.trainer]
        healthy = [index for index, other in enumerate(self.trainers) if other.lost is None]
        new = recut(share.units, share.trainer, self.split, healthy, is_lost=trainer.lost is not None)
        if new is None or work.redone > _RETRIES:
            raise StageFailure(
                f"error in {failure.stage} on {trainer.name} at step {work.step}: {describe(failure.error)}; "
                f"{_remedy(failure)}"
            ) from failure.error
        split, pieces = new
        if split != self.split:
            reason = "is lost, the run goes on without it" if failure.is_lost else "is out of memory"
            shares = ", ".join(
                f"{other.name} {before} → {after}"
                for other, before, after in zip(self.trainers, self.split, split, strict=True)
            )
            self._notify(
                f"step {work.step}: {trainer.name} {reason}; split {shares} ({describe(failure.error)})"
            )
            self.split = split
        return [Share(work, index, units) for index, units in pieces]

    def _note_failure(self, share: Share, stage: str, error: Exception) -> None:
        """Keep what can be mended with the share; anything else ends the run."""
        if isinstance(error, DeviceOutOfMemory):
            share.failure = Failure(error, stage, is_lost=False)
        elif self._continue_on_loss:
            self.trainers[share.trainer].lost = error
            share.failure = Failure(error, stage, is_lost=True)
        else:
            raise error


def _remedy(failure: Failure) -> str:
    if failure.is_lost:
        return "no trainer is left"
    return (
        "fewer targets did not help. Lower data.batch_size or sampler.fanout, or raise runtime.device_memory_gib "
        "where it is set"
    )
