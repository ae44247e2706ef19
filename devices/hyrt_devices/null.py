"""A device that computes nothing: the whole pipeline runs, and costs what the pipeline costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hyrt.device import DeviceInfo, DeviceOptions, StepResult
from hyrt.graph.graph import Graph
from hyrt.sampling.block import MiniBatch
from hyrt.sampling.sampler import HopSampler


class NullDevice:
    """Returns zero gradients at once. For tests and for measuring the stages before propagation."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._shapes: list[torch.Size] = []

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [
            DeviceInfo(
                kind="null", index=index, description="computes nothing", memory_bytes=0, simulated=True
            )
            for index in range(4)
        ]

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> NullDevice:
        return cls(info)

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._shapes = [parameter.shape for parameter in parameters]

    def sampler(self, graph: Graph) -> HopSampler | None:
        return None

    def gathers(self, graph: Graph) -> bool:
        return False

    def transfer(self, batch: MiniBatch) -> MiniBatch:
        return batch

    def propagate(self, staged: MiniBatch) -> StepResult:
        return StepResult(
            loss_sum=0.0,
            correct=0,
            targets=len(staged.targets),
            normalizer=staged.normalizer,
            gradients=[torch.zeros(shape) for shape in self._shapes],
        )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        pass

    def close(self) -> None:
        pass
