"""CPU trainers that do what only accelerators do: have little memory, gather rows, sample."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hyrt_devices.cpu import CpuDevice

from hyrt.device import DeviceInfo, DeviceOptions, StepResult
from hyrt.device.capabilities import GathersRows, SamplesNeighbors
from hyrt.device.host_model import HostModel
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Hop
from hyrt.testing.check_capabilities import sample_hop_on_host


class LimitedDevice(CpuDevice):
    """Has a memory of its own, in which only rows count."""

    def __init__(self, info: DeviceInfo, options: DeviceOptions) -> None:
        super().__init__(replace(info, zero_copy=False, host_cores=0, forms=("rows",)), options)
        self.room = options.memory_bytes
        self.used = 0
        self._lock = threading.Lock()

    def cost(self, batch: MiniBatch) -> int:
        return 4 * int(batch.inputs.numel())

    def transfer(self, batch: MiniBatch) -> MiniBatch:
        with self._lock:
            if self.room is not None and self.used + self.cost(batch) > self.room:
                self.refused(batch)
                raise DeviceOutOfMemoryError(f"{self.info.name}: {self.used} bytes in use of {self.room}")
            self.used += self.cost(batch)
        return super().transfer(batch)

    def refused(self, batch: MiniBatch) -> None:
        pass

    def propagate(self, staged: MiniBatch) -> StepResult:
        result = super().propagate(staged)
        with self._lock:
            self.used -= self.cost(staged)
        return result


class GatheringDevice(CpuDevice, GathersRows):
    """Reads feature rows itself."""

    def __init__(self, info: DeviceInfo, options: DeviceOptions) -> None:
        super().__init__(replace(info, forms=("rows", "ids")), options)
        self.features: Any = None

    def gathers(self, graph: Graph) -> bool:
        if not isinstance(graph.features, DenseFeatures):
            return False
        self.features = graph.features.values
        return True

    def rows(self, sources: Ids) -> np.ndarray:
        rows: np.ndarray = self.features[sources].astype(np.float32)
        return rows

    def _step(self, model: HostModel, batch: MiniBatch) -> StepResult:
        if batch.inputs is None and batch.blocks:
            sources = batch.blocks[0].sources
            assert sources is not None
            batch.inputs = torch.from_numpy(self.rows(sources))
        return super()._step(model, batch)


class HostHops:
    """A sampler that is the host's."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        hop = sample_hop_on_host(self.graph, vertices, fanout, key)
        return hop if relabel else replace(hop, sources=None, columns=None)

    def close(self) -> None:
        pass


class SamplingDevice(CpuDevice, SamplesNeighbors):
    """Has a sampler."""

    def sampler(self, graph: Graph) -> HostHops:
        return HostHops(graph)
