"""The four stages' work on one step, without threads or channels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from hyrt_perfmodel.assignment import Assignment, Threads

from hyrt.device import Device, StepResult
from hyrt.device.check_result import check_result
from hyrt.errors import DeviceFault, DeviceOutOfMemory, StageFailure, describe
from hyrt.machine.workers import Workers
from hyrt.observe.hook import Call, Hook, call_in
from hyrt.pipeline.load import InputPlan, Loader
from hyrt.pipeline.schedule import Schedule
from hyrt.pipeline.shares import Failure, Share, StepWork, cut, handed_over, recut
from hyrt.sampling.block import MiniBatch
from hyrt.sampling.sampler import HopSampler, Sampler

T = TypeVar("T")

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
    most_units
        It has been out of memory: the most of a step that it gets from then on; None where it has not.
    resize
        Changes the threads it computes with, between two of its mini-batches; None where they stay.
    threads
        That it computes with, where they can change.
    update_s
        What taking the weights took, the last time.
    """

    device: Device
    plan: InputPlan
    hops: HopSampler | None = None
    quiet: threading.Lock = field(default_factory=threading.Lock)
    lost: Exception | None = None
    most_units: int | None = None
    resize: Callable[[int], None] | None = None
    threads: int = 0
    update_s: float = 0.0

    @property
    def name(self) -> str:
        return self.device.info.name

    @property
    def is_short(self) -> bool:
        """Whether it has been out of memory."""
        return self.most_units is not None


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
    train_threads
        Of each trainer whose threads can change.
    hooks
        Called around every stage's work.
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
        train_threads: int = 1,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.trainers = list(trainers)
        self.schedule = Schedule(
            Assignment(
                split=tuple(split),
                threads=Threads(sample=sample_workers.count, load=load_workers.count, train=train_threads),
            )
        )
        self._parameters = list(parameters)
        self._sampler = sampler
        self._loader = loader
        self._sample_workers = sample_workers
        self._load_workers = load_workers
        self._continue_on_loss = continue_on_loss
        self._notify = notify
        self._unsaid: SimpleQueue[str] = SimpleQueue()
        self._retired: set[int] = set()
        self._hooks = hooks

    @property
    def split(self) -> list[int]:
        """Units for each trainer, of steps that are not cut yet."""
        return list(self.schedule.latest.split)

    def split_of(self, step: int) -> list[int]:
        """What one step is cut at."""
        return list(self.schedule.of(step).split)

    def cut(self, step: int) -> list[Share]:
        """A step's shares, one a trainer."""
        assignment = self.schedule.of(step)
        for hook in self._hooks:
            hook.cut(assignment)
        work = StepWork(step)
        pieces = cut(self._sampler.units(step), assignment.split)
        work.shares = [Share(work, index, units, index) for index, units in enumerate(pieces)]
        return list(work.shares)

    def _do(self, stage: str, share: Share, work: Callable[[], T]) -> T:
        """Do a stage's work for a share, inside the hooks."""
        if not self._hooks:
            return work()
        name = self.trainers[share.trainer].name
        call = Call(stage, name, share.work.step, share.trainer, share.number, len(share.units))
        return call_in(self._hooks, call, work)

    def sample(self, share: Share) -> None:
        if not len(share.units):
            return
        trainer = self.trainers[share.trainer]
        _resize(self._sample_workers, self.schedule.of(share.work.step).threads.sample)
        started = time.perf_counter()
        hops = trainer.hops
        try:
            share.batch = self._do("sample", share, lambda: self._draw(share, hops))
        except DeviceOutOfMemory as error:
            if hops is None:
                raise
            trainer.hops = hops = None
            self._unsaid.put(
                f"step {share.work.step}: {trainer.name} has no memory to sample in; the host samples for it ({error})"
            )
            share.batch = self._draw(share, None)
        except DeviceFault as error:
            self._note_failure(share, "sample", error)
        seconds = time.perf_counter() - started
        share.seconds["sample" if hops is None else "sample_on_device"] = seconds
        share.work.add("sample", seconds)

    def _draw(self, share: Share, hops: HopSampler | None) -> MiniBatch:
        in_place = self.trainers[share.trainer].plan.in_place
        return self._sampler.sample(
            share.work.step, share.units, self._sample_workers, in_place=in_place, hops=hops
        )

    def load(self, share: Share) -> None:
        batch = share.batch
        if batch is None:
            return
        _resize(self._load_workers, self.schedule.of(share.work.step).threads.load)
        started = time.perf_counter()
        plan = self.trainers[share.trainer].plan
        self._do("load", share, lambda: self._loader.load(batch, plan, self._load_workers))
        share.seconds["load"] = time.perf_counter() - started
        share.work.add("load", share.seconds["load"])

    def transfer(self, share: Share) -> Any:
        """Stage a share on its device; None where there is nothing to propagate."""
        trainer, batch = self.trainers[share.trainer], share.batch
        if batch is None:
            return None
        if trainer.lost is not None:
            share.failure = Failure(trainer.lost, "transfer", is_lost=True)
            return None
        with trainer.quiet:
            started = time.perf_counter()
            try:
                staged = self._do("transfer", share, lambda: trainer.device.transfer(batch))
            except Exception as error:
                self._note_failure(share, "transfer", error)
                return None
            share.seconds["transfer"] = time.perf_counter() - started
            share.work.note("transfer", share.seconds["transfer"])
        return staged

    def propagate(self, share: Share, staged: Any) -> None:
        """Fill in a share's result, or its failure."""
        trainer = self.trainers[share.trainer]
        if not len(share.units):
            share.result = StepResult(loss_sum=0.0, correct=0, targets=0, normalizer=0.0, gradients=())
            return
        if share.failure is None and trainer.lost is not None:
            share.failure = Failure(trainer.lost, "propagate", is_lost=True)
        if share.failure is not None:
            return
        try:
            self._resize_trainer(trainer, share.work.step)
            started = time.perf_counter()
            assert share.batch is not None
            result = self._do("propagate", share, lambda: trainer.device.propagate(staged))
            check_result(trainer.name, result, share.batch, self._parameters)
            share.result = result
        except Exception as error:
            self._note_failure(share, "propagate", error)
            return
        seconds = time.perf_counter() - started
        share.seconds |= {"propagate": seconds, **share.result.seconds}
        share.work.note("propagate", seconds)

    def _resize_trainer(self, trainer: Trainer, step: int) -> None:
        count = self.schedule.of(step).threads.train
        if trainer.resize is not None and count != trainer.threads:
            trainer.resize(count)
            trainer.threads = count

    def update(self, index: int, step: int) -> None:
        """Hand a trainer the master weights that a step made."""
        trainer = self.trainers[index]
        if trainer.lost is not None:
            return
        with trainer.quiet:
            started = time.perf_counter()
            try:
                call = Call("update", trainer.name, step, index)
                call_in(self._hooks, call, lambda: trainer.device.update(self._parameters))
            except Exception as error:
                if not self._continue_on_loss:
                    raise
                trainer.lost = error
            trainer.update_s = time.perf_counter() - started

    def again(self, work: StepWork) -> list[Share]:
        """Cut what failed of a step anew: new shares, to be sampled; none where nothing failed.

        Called when every trainer is through with the step. Units keep their sampled edges, whoever trains them.

        Raises
        ------
        StageFailure
            Naming stage, device and step, when memory was short too often or no trainer is left.
        """
        while not self._unsaid.empty():
            self._notify(self._unsaid.get())
        self._retire(work.step)
        failed = [
            (share, share.failure) for share in work.shares if share.failure is not None and len(share.units)
        ]
        short = {share.trainer for share, failure in failed if not failure.is_lost}
        work.redone += bool(short)
        newly_short = {index for index in short if not self.trainers[index].is_short}
        for share, failure in failed:
            trainer = self.trainers[share.trainer]
            if not failure.is_lost and trainer.most_units is None:
                trainer.most_units = len(share.units)
        made: list[Share] = []
        for share, failure in failed:
            num_units = len(share.units)
            number = len(work.shares) + len(made)
            made += self._cut_again(share, failure, share.trainer in newly_short, number)
            trainer = self.trainers[share.trainer]
            if trainer.most_units is not None:
                # The split may have come to give it less than the half that fits as far as is known.
                trainer.most_units = min(trainer.most_units, max(self.split[share.trainer], num_units // 2))
            # Done with: its units are in other shares now.
            share.units = share.units[:0]
        work.shares += made
        return made

    def _takers(self, giver: int) -> list[int]:
        others = [i for i, trainer in enumerate(self.trainers) if i != giver and trainer.lost is None]
        roomy = [index for index in others if not self.trainers[index].is_short]
        # What a lost trainer had must go somewhere.
        return roomy or (others if self.trainers[giver].lost is not None else [])

    def _retire(self, step: int) -> None:
        """Give the others what newly lost trainers had."""
        for index, trainer in enumerate(self.trainers):
            takers = self._takers(index)
            if trainer.lost is not None and index not in self._retired and takers:
                self._retired.add(index)
                after = handed_over(self.split, index, self.split[index], takers)
                self._change_split(step, trainer, "is lost, the run goes on without it", after, trainer.lost)

    def _change_split(
        self, step: int, trainer: Trainer, what: str, after: list[int], error: Exception
    ) -> None:
        shares = ", ".join(
            f"{other.name} {before} → {n}"
            for other, before, n in zip(self.trainers, self.split, after, strict=True)
        )
        self._notify(f"step {step}: {trainer.name} {what}; split {shares} ({describe(error)})")
        self.schedule.change(step, Assignment(split=tuple(after), threads=self.schedule.latest.threads))

    def _cut_again(self, share: Share, failure: Failure, is_newly_short: bool, number: int) -> list[Share]:
        work, trainer = share.work, self.trainers[share.trainer]
        takers = self._takers(share.trainer)
        new = recut(share.units, share.trainer, self.split, takers, is_lost=trainer.lost is not None)
        if new is None or work.redone > _RETRIES:
            raise StageFailure(
                f"error in {failure.stage} on {trainer.name} at step {work.step}: {describe(failure.error)}; "
                f"{_remedy(failure)}"
            ) from failure.error
        after, pieces = new
        if after != self.split:
            self._change_split(work.step, trainer, "is out of memory", after, failure.error)
        elif is_newly_short and not takers:
            self._notify(
                f"step {work.step}: {trainer.name} is out of memory and nobody can take more: a share that does not fit "
                f"is done in parts ({describe(failure.error)})"
            )
        return [
            Share(work, index, units, at, is_again=True) for at, (index, units) in enumerate(pieces, number)
        ]

    def _note_failure(self, share: Share, stage: str, error: Exception) -> None:
        """Keep what can be mended with the share; anything else ends the run."""
        if isinstance(error, DeviceOutOfMemory):
            share.failure = Failure(error, stage, is_lost=False)
        elif self._continue_on_loss:
            self.trainers[share.trainer].lost = error
            share.failure = Failure(error, stage, is_lost=True)
        else:
            raise error


def _resize(workers: Workers, count: int) -> None:
    if workers.count != count:
        workers.resize(count)


def _remedy(failure: Failure) -> str:
    if failure.is_lost:
        return "no trainer is left"
    if isinstance(failure.error, DeviceOutOfMemory) and failure.error.remedy:
        return failure.error.remedy
    return (
        "fewer targets did not help. Lower data.batch_size or sampler.fanout, or raise runtime.device_memory_gib "
        "where it is set"
    )
