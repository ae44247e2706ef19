"""Sample stage, which samples the mini-batch of a share on the host or on the trainer's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hyrt.errors import ArgumentError, ConfigError, DeviceFaultError, DeviceOutOfMemoryError
from hyrt.pipeline.recovery import Recovery
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.work_items import Schedule, WorkShare
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, Sampler


@dataclass(frozen=True, slots=True)
class SampleStage:
    """Sample stage, which samples with as many worker threads as the step's assignment allows."""

    sampler: Sampler
    trainers: Sequence[Trainer]
    schedule: Schedule
    workers: Workers
    recovery: Recovery

    def __call__(self, share: WorkShare) -> None:
        """Sample a share's mini-batch, which stays None for a share without units."""
        if not len(share.units):
            return
        step, trainer = share.work.step, self.trainers[share.trainer]
        self.workers.resize(self.schedule.of(step).threads.sample)
        hops = trainer.hops
        if hops is not None:
            try:
                share.batch = trainer.work("sample", share, lambda: self._draw(share, hops))
                share.seconds["sample_on_device"] = share.seconds.pop("sample")
                return
            except DeviceFaultError as error:
                self.recovery.record_failure(share, "sample", error)
                return
            except DeviceOutOfMemoryError as error:
                trainer.hops = None
                self.recovery.say_later(
                    f"step {step}: {trainer.name} has too little memory for sampling, so the host samples "
                    f"for it ({error})"
                )
        share.batch = trainer.work("sample", share, lambda: self._draw(share, None))

    def _draw(self, share: WorkShare, hops: HopSampler | None) -> MiniBatch:
        in_place = self.trainers[share.trainer].plan.in_place
        # A third-party sampler may return any object.
        batch: Any = self.sampler.sample(
            share.work.step, share.units, self.workers, in_place=in_place, hops=hops
        )
        kind = type(self.sampler)
        name = f"the sampler {kind.__module__}.{kind.__name__}"
        if not isinstance(batch, MiniBatch):
            raise ConfigError(
                f"{name} returned {type(batch).__name__}, not a MiniBatch: return a "
                "hyrt.sampling.minibatch.MiniBatch"
            )
        if kind.__module__.partition(".")[0] != "hyrt":
            # Check the mini-batch again, because a third-party sampler may have modified its arrays.
            batch.distrusted()
        try:
            return batch.checked
        except ArgumentError as error:
            raise ConfigError(
                f"{name} returned an invalid mini-batch in step {share.work.step}: {error}"
            ) from error
