"""Transfer stage, which copies a share's mini-batch to its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hyrt.pipeline.recovery import Recovery
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.work_items import Failure, WorkShare


@dataclass(frozen=True, slots=True)
class TransferStage:
    """Transfer stage, which passes failures to the recovery."""

    trainers: Sequence[Trainer]
    recovery: Recovery

    def __call__(self, share: WorkShare) -> Any:
        """Return the mini-batch on the device; None if there is no mini-batch to propagate."""
        trainer, batch = self.trainers[share.trainer], share.batch
        if batch is None:
            return None
        if trainer.lost is not None:
            share.failure = Failure(trainer.lost, "transfer", is_lost=True)
            return None
        with trainer.transfer_lock:
            try:
                return trainer.work("transfer", share, lambda: trainer.device.transfer(batch))
            except Exception as error:
                self.recovery.record_failure(share, "transfer", error)
                return None
