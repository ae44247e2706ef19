"""The parts of a run with injected faults between them: a run without faults uses none of this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hyrt.device import Device, StepResult
from hyrt.errors import ConfigError, DeviceFault
from hyrt.machine.atomic_write import write_atomically
from hyrt.observe.faults import VARIABLE, Faults
from hyrt.pipeline.shares import Share, StepWork
from hyrt.pipeline.stages import StageCalls, Trainer
from hyrt.pipeline.synchronize import StepSummary, Synchronizer
from hyrt.sampling.block import MiniBatch

_DEVICE_STAGES = ("transfer", "propagate", "update")


class FaultyStages:
    """Passes every call on to the stages, after the faults of sampling and loading.

    Parameters
    ----------
    stages
        Do the work.
    faults
        Happen before it.
    """

    def __init__(self, stages: StageCalls, faults: Faults) -> None:
        self.trainers = stages.trainers
        self.schedule = stages.schedule
        self.cut = stages.cut
        self.transfer = stages.transfer
        self.propagate = stages.propagate
        self.update = stages.update
        self.again = stages.again
        self._stages = stages
        self._faults = faults

    def sample(self, share: Share) -> None:
        if len(share.units):
            self._faults.strike("sample", self.trainers[share.trainer].name, share.work.step)
        self._stages.sample(share)

    def load(self, share: Share) -> None:
        if share.batch is not None:
            self._faults.strike("load", self.trainers[share.trainer].name, share.work.step)
        self._stages.load(share)


class FaultyDevice:
    """A device with the faults of `transfer`, `propagate` and `update`; all else is the device's own.

    Parameters
    ----------
    device
        Does the work.
    faults
        Happen before it.
    """

    def __init__(self, device: Device, faults: Faults) -> None:
        self._device = device
        self._faults = faults
        self._step = 0
        self._fault: DeviceFault | None = None
        self.info = device.info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def transfer(self, batch: MiniBatch) -> tuple[int, Any]:
        self._strike("transfer", batch.step)
        return batch.step, self._device.transfer(batch)

    def propagate(self, staged: tuple[int, Any]) -> StepResult:
        self._step, own = staged
        kind = self._strike("propagate", self._step)
        result = self._device.propagate(own)
        match kind:
            case "nan-loss":
                return replace(result, loss_sum=float("nan"))
            case "nan-gradient":
                *others, last = (gradient.clone() for gradient in result.gradients)
                last.view(-1)[-1] = float("nan")
                return replace(result, gradients=[*others, last])
        return result

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        self._strike("update", self._step)
        self._device.update(parameters)

    def _strike(self, stage: str, step: int) -> str | None:
        # As of every device: a fault is terminal.
        if self._fault is not None:
            raise self._fault
        try:
            return self._faults.strike(stage, self.info.name, step)
        except DeviceFault as fault:
            self._fault = fault
            raise


class FaultySynchronizer:
    """The host's step, after its faults.

    Parameters
    ----------
    synchronizer
        Does the work.
    faults
        Happen before it.
    """

    def __init__(self, synchronizer: Synchronizer, faults: Faults) -> None:
        self._synchronizer = synchronizer
        self._faults = faults

    def step(self, work: StepWork) -> StepSummary:
        self._faults.strike("synchronize", "host", work.step)
        return self._synchronizer.step(work)


def faulty_trainers(trainers: Sequence[Trainer], faults: Faults) -> None:
    """Put the faults of devices into those that have some.

    Raises
    ------
    ConfigError
        If a fault is of a trainer that the run does not have.
    """
    names = [trainer.name for trainer in trainers]
    for fault in faults.wanted:
        if fault.stage not in ("synchronize", "checkpoint") and fault.place not in (*names, "*"):
            raise ConfigError(
                f"{VARIABLE}: {fault.place!r} of {fault.stage} is no trainer of this run: {', '.join(names)}"
            )
    for trainer in trainers:
        if any(f.stage in _DEVICE_STAGES and f.place in (trainer.name, "*") for f in faults.wanted):
            # The rest of its protocol is found by name.
            trainer.device = FaultyDevice(trainer.device, faults)  # type: ignore[assignment]


def faulty_write(faults: Faults, step: int) -> Callable[[Path, bytes], None]:
    """`write_atomically` with the faults of a checkpoint of that step before each of its operations."""

    def before(doing: str) -> None:
        faults.strike("checkpoint", doing, step)

    return lambda path, data: write_atomically(path, data, before)
