"""Rows that a torch device is sent as codes, and those that it keeps, over a double of its driver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.cuda.rows.row_tensors import RowArrays
from unit.cuda.fake_driver import FakeDriver

from hyrt.config import build_config
from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.errors import DeviceOutOfMemory
from hyrt.graph.cached.cached_rows import CachedRows
from hyrt.graph.narrow.narrowing import narrowed
from hyrt.graph.narrow.row_format import ROW_FORMATS
from hyrt.machine.workers import Workers
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.training.setup import build_model

INFO = DeviceInfo(
    kind="cuda", index=0, description="a double", memory_bytes=1 << 30, forms=("rows", "narrow", "cached")
)
ALONE = Workers(1, "test")


@pytest.mark.parametrize("row_format", [name for name, each in ROW_FORMATS.items() if each.is_narrow])
def test_codes_become_the_numbers_that_the_host_makes_of_them(row_format: str) -> None:
    store = narrowed(random_graph(), row_format).features.all_rows  # type: ignore[attr-defined]
    there = RowArrays.of(store).moved(torch.from_numpy)
    np.testing.assert_array_equal(there.numbers().numpy(), store.numbers())


def opened(free: int = 1 << 30, memory: int | None = None) -> CudaDevice:
    device = CudaDevice(INFO, DeviceOptions(memory_bytes=memory), FakeDriver(free))
    model = build_model(build_config({"model": {"hidden": 4}}), random_graph())
    device.load(model, list(model.parameters()))
    return device


def test_rows_that_do_not_fit_leave_the_device_as_it_was() -> None:
    rows = np.ones((500, 12), np.float32)
    device = opened(memory=20_000)
    free = device.free_bytes
    assert free < 20_000
    with pytest.raises(DeviceOutOfMemory, match="500 rows do not fit"):
        device.keep_rows(500, iter([rows[:100], rows[100:]]))
    assert device.free_bytes == free
    device.keep_rows(100, iter([rows[:60], rows[60:100]]))
    assert free - device.free_bytes == 100 * 48
    device.close()


def test_a_place_of_no_row_is_a_fault_and_not_another_row() -> None:
    graph, device = random_graph(), opened()
    device.keep_rows(10, iter([np.ones((10, graph.num_features), np.float32)]))
    sampler = NeighborSampler(graph, graph.split("train"), [3, 2], 8, 0)
    batch = sampler.sample(0, sampler.units(0), ALONE, in_place=False)
    count = batch.blocks[0].num_src
    batch.inputs = CachedRows(np.full(count, 10, np.int32), np.ones((0, graph.num_features), np.float32))
    with pytest.raises(Exception, match="places are from 10 to 10, where 10 rows are kept"):
        device.transfer(batch)
    device.close()
