"""Propagate stage: forward and backward pass of a share's mini-batch on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hyrt.device import StepResult
from hyrt.device.check_result import check_result
from hyrt.pipeline.recovery import Recovery
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.work_items import Failure, Schedule, WorkShare


@dataclass(frozen=True, slots=True)
class PropagateStage:
    """Propagate stage. Gradient sums must have the shapes of the master weights.

    `counts` has the names of the objective's counts.
    """

    trainers: Sequence[Trainer]
    schedule: Schedule
    parameters: Sequence[torch.Tensor]
    counts: Sequence[str]
    recovery: Recovery

    def __call__(self, share: WorkShare, staged: Any) -> None:
        """Propagate a share's mini-batch, and store the result or the failure in the share."""
        trainer = self.trainers[share.trainer]
        if not share.is_retry:
            # The trainer loads this step's weights later, so this is the duration of the previous update.
            share.seconds["update"] = trainer.update_s
        if not len(share.units):
            share.result = StepResult.empty(0.0)
            return
        if share.failure is None and trainer.lost is not None:
            share.failure = Failure(trainer.lost, "propagate", is_lost=True)
        if share.failure is not None:
            return
        assert share.batch is not None
        try:
            count = self.schedule.of(share.work.step).threads.train
            if trainer.resize is not None and count != trainer.threads:
                trainer.resize(count)
                trainer.threads = count
            result = trainer.work("propagate", share, lambda: trainer.device.propagate(staged))
            check_result(trainer.name, result, share.batch, self.parameters, self.counts)
            share.result = result
        except Exception as error:
            self.recovery.record_failure(share, "propagate", error)
