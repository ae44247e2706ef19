"""Every CUDA kernel, emulated against the host's compiled loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_devices.cuda.blocks import TorchAggregation
from hyrt_devices.cuda.driver import pinned_pool
from hyrt_devices.cuda.feature_rows import MappedFeatures
from hyrt_devices.cuda.sampler import CudaSampler
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver
from unit.nn.block_cases import block_of, blocks, tensor_block

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.aggregate import aggregate
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.testing.check_capabilities import sample_hop_on_host

COMBINATIONS = [
    (reduce, self_path)
    for reduce, self_path in itertools.product(("mean", "sum", "gcn", "max"), ("none", "add", "concat"))
    if (reduce, self_path) != ("max", "add")
]


HOP_PARTS = ("degrees", "offsets", "neighbors", "sources", "columns")


def same(mine: Any, theirs: Any) -> bool:
    return mine.dtype == theirs.dtype and np.array_equal(mine, theirs)


@needs_compiler
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("degree", [6.0, 90.0])
def test_sampler_is_bit_equal_to_the_host(degree: float, resident: bool, backwards: bool) -> None:
    graph = random_graph(degree=degree)
    driver = FakeDriver()
    launcher = EmulatedLauncher(driver, backwards=backwards)
    sampler = CudaSampler(driver, launcher, pinned_pool(driver), graph, resident=resident)
    rng = np.random.default_rng(3)
    for step, fanout in enumerate([-1, 0, 1, 5, 64, 65, 100]):
        vertices = rng.permutation(graph.num_vertices).astype(np.int32)[: 40 + step]
        key = stream_key(11, SAMPLE, step, 2)
        wanted = sample_hop_on_host(graph, vertices, fanout, key)
        hop = sampler.draw(vertices, fanout, key, relabel=True)
        for part in HOP_PARTS:
            assert same(getattr(hop, part), getattr(wanted, part)), part
        there = hop.resident
        assert same(there.source_degrees.numpy(), graph.topology.in_degrees[wanted.sources])
        assert same(there.sources.numpy(), wanted.sources)
        plain = sampler.draw(vertices, fanout, key, relabel=False)
        assert same(plain.neighbors, wanted.neighbors)
        assert plain.sources is plain.columns is plain.resident is None
    sampler.close()
    sampler.close()
    assert not launcher.mapped
    assert sampler.nbytes == 0
    with pytest.raises(RuntimeError, match="was used after it was closed"):
        sampler.draw(vertices, 5, key, relabel=True)


@needs_compiler
@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("stored", [np.int32, np.int64])
def test_sampler_kernels_take_both_widths_of_ids(
    ids: Any, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph()
    graph = Graph.from_arrays(
        "wide",
        graph.topology.indptr,
        graph.topology.indices.astype(stored),
        graph.features,
        graph.labels,
        graph.masks,
    )
    monkeypatch.setattr("hyrt_devices.cuda.sampler.id_type", lambda graph: np.dtype(ids))
    driver = FakeDriver()
    sampler = CudaSampler(driver, EmulatedLauncher(driver), pinned_pool(driver), graph, resident=True)
    vertices = np.arange(0, 300, 7, dtype=ids)
    key = stream_key(2, SAMPLE, 0, 1)
    hop = sampler.draw(vertices, 4, key, relabel=True)
    wanted = sample_hop_on_host(graph, vertices, 4, key)
    for part in HOP_PARTS:
        assert same(getattr(hop, part), getattr(wanted, part)), part


@needs_compiler
def test_sampling_of_nothing_is_nothing() -> None:
    driver = FakeDriver()
    sampler = CudaSampler(
        driver, EmulatedLauncher(driver), pinned_pool(driver), random_graph(), resident=True
    )
    hop = sampler.draw(np.empty(0, np.int32), 5, np.uint64(1), relabel=True)
    assert hop.offsets.tolist() == [0]
    assert hop.sources is not None
    assert len(hop.neighbors) == len(hop.sources) == 0


@needs_compiler
def test_a_hop_that_runs_out_of_memory_leaves_nothing_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    driver = FakeDriver()
    sampler = CudaSampler(driver, EmulatedLauncher(driver), pinned_pool(driver), graph, resident=True)
    vertices, key = np.arange(100, dtype=np.int32), stream_key(1, SAMPLE, 0, 1)
    wanted = sampler.draw(vertices, 5, key, relabel=True)

    def full(*arguments: Any, **options: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "cumsum", full)
    with pytest.raises(DeviceOutOfMemoryError, match=r"sampler\.on_device"):
        sampler.draw(vertices[::-1].copy(), 5, key, relabel=True)
    monkeypatch.undo()
    # Past the first meetings, before they are forgotten.
    monkeypatch.setattr(torch.Tensor, "index_fill_", full)
    with pytest.raises(DeviceOutOfMemoryError, match="100 vertices"):
        sampler.draw(vertices[::-1].copy(), 5, key, relabel=True)
    monkeypatch.undo()
    hop = sampler.draw(vertices, 5, key, relabel=True)
    assert hop.sources is not None
    assert wanted.sources is not None
    assert same(hop.sources, wanted.sources)


@needs_compiler
def test_edges_that_cannot_be_mapped_are_an_error_that_leaves_nothing_mapped() -> None:
    driver = FakeDriver()
    launcher = EmulatedLauncher(driver, maps=False)
    with pytest.raises(MemoryError, match="cannot be mapped"):
        CudaSampler(driver, launcher, pinned_pool(driver), random_graph(), resident=False)
    assert not launcher.mapped


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    block=blocks(),
    combination=st.sampled_from(COMBINATIONS),
    width=st.sampled_from([1, 3, 33, 70]),
    backwards=st.booleans(),
    seed=st.integers(0, 99),
)
def test_aggregation_agrees_with_the_host(
    block: Any, combination: tuple[Any, Any], width: int, backwards: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(block.num_src, width, generator=generator)
    what = Aggregation(*combination, 0.25)
    x, y = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    wanted = aggregate(block, x, what)
    moved = tensor_block(block)
    moved.aggregate = TorchAggregation(EmulatedLauncher(FakeDriver(), backwards=backwards))
    mine = aggregate(moved, y, what)
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
    direction = torch.randn(wanted.shape, generator=generator)
    wanted.backward(direction)
    mine.backward(direction)
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_a_second_derivative_of_an_aggregation_is_refused() -> None:
    block = tensor_block(block_of([[0, 1], [2]], 3))
    block.aggregate = TorchAggregation(EmulatedLauncher(FakeDriver()))
    x = torch.ones(3, 2, requires_grad=True)
    total = aggregate(block, x, Aggregation("mean", "none")).square().sum()
    with pytest.raises(RuntimeError, match="compiled loops support only first derivatives"):
        torch.autograd.grad(total, x, create_graph=True)


@needs_compiler
def test_what_the_aggregation_kernels_are_not_built_for_is_torchs() -> None:
    launcher = EmulatedLauncher(FakeDriver())
    block = block_of([[3, 0, 3], [], [2, 4, 5, 1, 0, 3]], 7)
    moved = tensor_block(block)
    moved.aggregate = TorchAggregation(launcher)
    x = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(aggregate(moved, x, "mean"), aggregate(block, x, "mean"))
    assert launcher.launched == []


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("ids", ["int", "long long"])
def test_gathered_rows_are_the_matrix_rows(dtype: Any, ids: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50, 37)).astype(dtype)
    launcher = EmulatedLauncher(FakeDriver())
    address = launcher.map_host(values)
    assert address is not None
    features = MappedFeatures(launcher, values, address, ids)
    rows = rng.integers(0, 50, 23).astype(np.int32 if ids == "int" else np.int64)
    assert features.rows(torch.from_numpy(rows)).numpy().tolist() == values[rows].astype(np.float32).tolist()
    features.close()
    assert not launcher.mapped


@needs_compiler
def test_every_half_is_widened_as_numpy_does() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)[:, None].copy()
    launcher = EmulatedLauncher(FakeDriver())
    address = launcher.map_host(halves)
    assert address is not None
    rows = MappedFeatures(launcher, halves, address, "int").rows(torch.arange(65536, dtype=torch.int32))
    with np.errstate(invalid="ignore"):
        wanted = halves.astype(np.float32)
    mine = rows.numpy()
    numbers = ~np.isnan(wanted)
    assert (np.isnan(mine) == np.isnan(wanted)).all()
    assert (mine.view(np.uint32)[numbers] == wanted.view(np.uint32)[numbers]).all()
