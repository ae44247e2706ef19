"""Measuring a device's rates by the work it will do: whole mini-batches, through the device protocol alone."""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from hyrt import __version__
from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.calls import opened
from hyrt.device.rates import MeasuredRates
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.machine.workers import Workers
from hyrt.nn.model import GNN, Architecture
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor import NeighborSampler

_REPETITIONS = 5
_BYTES_PER_VALUE = 4
# Below this, what a step costs whatever its size (launches, waiting, sending sums) would count as products.
_LONG_ENOUGH_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A one-layer model's mini-batch: the input takes no gradient, so its products run forward and for the weight."""

    targets: int
    vertices: int
    fanout: int
    features: int
    classes: int

    @property
    def macs(self) -> int:
        return 2 * self.targets * self.features * self.classes

    @property
    def aggregated_bytes(self) -> int:
        return self.targets * self.fanout * self.features * _BYTES_PER_VALUE


# Wide rows over few edges are bound by products; narrow results over many edges by reading rows.
_PRODUCTS = _Work(targets=4096, vertices=8192, fanout=1, features=2048, classes=512)
_MORE_PRODUCTS = _Work(targets=16384, vertices=32768, fanout=1, features=2048, classes=1024)
# Its rows take 85 MB, as the inputs of a step do: more than most caches hold.
_READING = _Work(targets=8192, vertices=400_000, fanout=25, features=128, classes=2)


def measure_rates(backend: type[Device], info: DeviceInfo, threads: int) -> MeasuredRates:
    """Measure one device.

    Parameters
    ----------
    backend, info
        Which.
    threads
        For a device that computes on the host.

    Raises
    ------
    HyrtError
        If the device cannot be opened, or fails.
    """
    with opened(backend, info, DeviceOptions(threads=threads)) as device:
        work = _PRODUCTS
        products = _times(device, work).propagate
        if statistics.median(products) < _LONG_ENOUGH_S:
            work = _MORE_PRODUCTS
            products = _times(device, work).propagate
        reader = _times(device, _READING)
    macs_per_s = work.macs / statistics.median(products)
    # What the products in the second kind of mini-batch take is known from the first.
    reading = [max(1e-9, seconds - _READING.macs / macs_per_s) for seconds in reader.propagate]
    return MeasuredRates(
        description=info.description,
        host=platform.node(),
        hyrt=__version__,
        date=datetime.date.today().isoformat(),
        macs_per_s=macs_per_s,
        memory_bytes_per_s=_READING.aggregated_bytes / statistics.median(reading),
        link_bytes_per_s=None
        if info.zero_copy
        else reader.moved_bytes / max(1e-9, statistics.median(reader.transfer)),
        spread=max(_spread(products), _spread(reading)),
    )


def _spread(values: list[float]) -> float:
    middle = statistics.median(values)
    return max(abs(value - middle) / middle for value in values)


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of each repetition, and the bytes of features that one transfer moves."""

    propagate: list[float]
    transfer: list[float]
    moved_bytes: int


def _times(device: Device, work: _Work) -> _Times:
    """Time whole mini-batches; the first repetition, which compiles, is left out."""
    model = GNN(
        Architecture(
            kind="gcn", in_features=work.features, num_classes=work.classes, layers=1, hidden=work.classes
        )
    )
    device.load(model, list(model.parameters()))
    propagate, transfer = [], []
    with Workers(1, "hyrt.measure") as workers:
        batch = _mini_batch(work, workers)
        for _ in range(_REPETITIONS + 1):
            started = time.perf_counter()
            staged = device.transfer(batch)
            staged_at = time.perf_counter()
            result = device.propagate(staged)
            done_at = time.perf_counter()
            # A transfer may go on after its call, into propagate's: the device's own clock tells them apart.
            transfer.append(result.seconds.get("transfer") or staged_at - started)
            propagate.append(result.seconds.get("propagate") or done_at - staged_at)
        assert isinstance(batch.inputs, torch.Tensor)
        moved_bytes = batch.inputs.numel() * _BYTES_PER_VALUE
        batch.release()
    return _Times(propagate[1:], transfer[1:], moved_bytes)


def _mini_batch(work: _Work, workers: Workers) -> MiniBatch:
    """Targets with `fanout` neighbours each, at random among all vertices."""
    generator = np.random.default_rng(0)
    num = work.vertices
    indptr = np.minimum(np.arange(num + 1), work.targets).astype(np.int64) * work.fanout
    indices = generator.integers(0, num, work.targets * work.fanout).astype(np.int32)
    features = generator.standard_normal((num, work.features), np.float32)
    labels = generator.integers(0, work.classes, num).astype(np.int64)
    graph = Graph.of_arrays("measured", indptr, indices, DenseFeatures(features), labels, {})
    sampler = NeighborSampler(graph, np.arange(work.targets, dtype=np.int32), [work.fanout], work.targets, 0)
    batch = sampler.sample(0, sampler.units(0), workers, in_place=False)
    Loader(graph.features).load(batch, InputPlan("rows"), workers)
    return batch
