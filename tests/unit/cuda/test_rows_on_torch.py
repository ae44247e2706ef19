"""Rows that a torch device is sent as codes, and those that it keeps, over a double of its driver."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.cuda.feature_rows import RowArrays, RowKernels, SentRows
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver
from unit.nn import dense_reference as dense
from unit.nn.block_cases import block_of, tensor_block

from hyrt.config import build_config
from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph.feature_cache import CachedRows
from hyrt.graph.quantized.features import quantize_graph
from hyrt.graph.quantized.row_format import ROW_FORMATS
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.layer import AggregatedFeatures
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.training.setup import build_model

INFO = DeviceInfo(
    kind="cuda", index=0, description="a double", memory_bytes=1 << 30, forms=("rows", "quantized", "cached")
)
ALONE = Workers(1, "test")


@pytest.mark.parametrize("row_format", [name for name, each in ROW_FORMATS.items() if each.is_quantized])
def test_codes_become_the_numbers_that_the_host_makes_of_them(row_format: str) -> None:
    store = quantize_graph(random_graph(), row_format).features.all_rows  # type: ignore[attr-defined]
    there = RowArrays.of(store).moved(torch.from_numpy)
    np.testing.assert_array_equal(there.numbers().numpy(), store.to_float32())


def parted(row_format: str) -> tuple[SentRows, np.ndarray]:
    """12 rows, of which some are kept and the others were sent, and their numbers."""
    graph = random_graph(features=37)
    store: Any = (graph if row_format == "float32" else quantize_graph(graph, row_format)).features
    kept, sent = np.arange(5, 11), np.array([50, 40, 30, 20, 10, 60, 70])
    places = np.array([0, -1, 5, -7, 3, 3, -2, -4, 1, -3, -6, -5], np.int32)

    def moved(ids: np.ndarray) -> Any:
        if row_format == "float32":
            return RowArrays.of(store.values[ids]).moved(torch.from_numpy)
        rows = QuantizedRows.allocate(store.row_format, (len(ids), 37), store.column_scales)
        store.quantized_rows(ids, rows, ALONE)
        return RowArrays.of(rows).moved(torch.from_numpy)

    ids = np.where(places >= 0, kept[places.clip(0)], sent[(-1 - places).clip(0)])
    out = np.empty((len(ids), 37), np.float32)
    store.rows(ids, out, ALONE)
    return SentRows(moved(sent), moved(kept), torch.from_numpy(places)), out


@needs_compiler
@pytest.mark.parametrize("row_format", list(ROW_FORMATS))
def test_kept_and_sent_rows_become_numbers_in_one_kernel(row_format: str) -> None:
    launcher = EmulatedLauncher(FakeDriver())
    rows, wanted = parted(row_format)
    block = tensor_block(block_of([[0], [1]], 12))
    found = RowKernels(launcher).inputs(rows, block, None)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), wanted)
    np.testing.assert_array_equal(rows.numbers().numpy(), wanted)
    assert launcher.launched == ["widen_rows"]


@needs_compiler
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("row_format", list(ROW_FORMATS)[1:])
def test_codes_are_aggregated_where_they_are(row_format: str, backwards: bool) -> None:
    launcher = EmulatedLauncher(FakeDriver(), backwards=backwards)
    kernels, (rows, numbers) = RowKernels(launcher), parted(row_format)
    for reduce, self_path, weighted in itertools.product(
        ("mean", "sum", "gcn", "max"), ("none", "add", "concat"), (False, True)
    ):
        if (reduce, self_path) == ("max", "add"):
            continue
        what = Aggregation(reduce, self_path, 0.25)
        block = block_of([[3, 0, 3], [], [2, 4, 11, 1, 0, 9, 7]], 12, weighted=weighted)
        found = kernels.inputs(rows, tensor_block(block), what)
        assert isinstance(found, AggregatedFeatures)
        wanted = dense.combine(block, torch.from_numpy(numbers).double(), reduce, self_path, 0.25).numpy()
        np.testing.assert_allclose(found.values.numpy(), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    assert set(launcher.launched) == {"aggregate_rows", "aggregate_rows_max"}


@needs_compiler
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("row_format", ["float32", "int8"])
def test_a_step_by_kernels_is_that_by_torchs_operators(row_format: str, cache: bool) -> None:
    graph = random_graph() if row_format == "float32" else quantize_graph(random_graph(), row_format)
    launcher = EmulatedLauncher(FakeDriver())
    found = []
    for device in (opened(), opened(launcher=launcher)):
        sampler = NeighborSampler(graph, graph.split("train"), [3, 2], 8, 0)
        batch = sampler.sample(0, sampler.units(0), ALONE, in_place=False)
        ids, places = batch.blocks[0].sources, None
        assert ids is not None
        if cache:
            kept = ids[::2]
            device.keep_rows(len(kept), iter([rows_of(graph, kept)]))
            places = np.where(
                np.arange(len(ids)) % 2, -1 - np.arange(len(ids)) // 2, np.arange(len(ids)) // 2
            )
            ids = ids[1::2]
        rows: Any = rows_of(graph, ids)
        if places is not None:
            rows = CachedRows(places.astype(np.int32), rows)
        batch.inputs = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
        found.append(device.propagate(device.transfer(batch)))
        device.close()
    assert found[0].loss_sum == pytest.approx(found[1].loss_sum, rel=1e-6)
    for mine, theirs in zip(found[1].gradients, found[0].gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert ("aggregate_rows" in launcher.launched) == (row_format == "int8")
    assert ("widen_rows" in launcher.launched) == (cache and row_format == "float32")


def rows_of(graph: Any, ids: np.ndarray) -> Any:
    """Rows in the format of the graph's."""
    store = graph.features
    if not store.row_format.is_quantized:
        return store.values[ids]
    rows = QuantizedRows.allocate(store.row_format, (len(ids), store.width), store.column_scales)
    store.quantized_rows(ids, rows, ALONE)
    return rows


def opened(
    free: int = 1 << 30, memory: int | None = None, launcher: EmulatedLauncher | None = None
) -> CudaDevice:
    device = CudaDevice(INFO, DeviceOptions(memory_bytes=memory), FakeDriver(free), launcher)
    model = build_model(build_config({"model": {"hidden": 4}}), random_graph())
    device.load(model, list(model.parameters()))
    return device


def test_rows_that_do_not_fit_leave_the_device_as_it_was() -> None:
    rows = np.ones((500, 12), np.float32)
    device = opened(memory=20_000)
    free = device.free_bytes
    assert free < 20_000
    with pytest.raises(DeviceOutOfMemoryError, match="500 cached rows do not fit"):
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
    with pytest.raises(Exception, match="slots are from 10 to 10, but 10 rows are cached"):
        device.transfer(batch)
    device.close()
