"""Null device, which skips propagation and thus shows the overhead of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from hyrt.device import DeviceInfo, DeviceOptions, Health, StepResult
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.host_staged import HostStaged


class NullDevice:
    """Device that returns zero gradients immediately, for tests and for timing the other stages."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info, self._health, self._staged = info, Health(info.name), HostStaged()
        self._shapes: list[torch.Size] = []

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        info = DeviceInfo(
            kind="null",
            index=0,
            description="computes nothing",
            memory_bytes=0,
            whole_graphs=True,
            simulated=True,
        )
        return [replace(info, index=index) for index in range(4)]

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> NullDevice:
        return cls(info)

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        self._shapes = [parameter.shape for parameter in parameters]

    def transfer(self, batch: MiniBatch) -> MiniBatch:
        self._health.check()
        return self._staged.put(batch)

    def propagate(self, staged: MiniBatch) -> StepResult:
        with self._health.terminal("propagate"):
            targets = len(self._staged.take(staged).targets)
        n, zeros = staged.normalizer, [torch.zeros(shape) for shape in self._shapes if targets]
        return StepResult(
            loss_sum=0.0, counts={"correct": 0, "targets": targets}, normalizer=n, gradients=zeros
        )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()

    def close(self) -> None:
        self._health.close()
        self._staged.clear()
