"""What calibration makes of the times that stages take: the costs that were put in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hyrt_devices.cpu import CpuDevice
from hyrt_perfmodel.expected_sizes import BlockSizes

from hyrt.device.calls import opened
from hyrt.device.discovery import find_device
from hyrt.device.protocol import DeviceOptions
from hyrt.graph import open_graph
from hyrt.predict.calibrate import host, trainers
from hyrt.predict.calibrate.trainers import Probe, measure_probe
from hyrt.sampling.block import Block


def test_walks_of_three_sizes_tell_what_a_mini_batch_a_step_and_an_edge_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = open_graph("synthetic:tiny")

    def walked(edges: int, settings: Any, workers: Any, sweep: Any) -> tuple[BlockSizes, float]:
        steps, scanned = 3.0 * settings.roots, edges * settings.roots / 4000
        sizes = BlockSizes(vertices=(1.0,), edges=(), walk_steps=steps, scanned_edges=scanned)
        return sizes, 2e-4 + 1.5e-7 * steps + 8e-9 * scanned

    monkeypatch.setattr(host, "SaintSampler", lambda graph, *rest, **more: graph.num_edges)
    monkeypatch.setattr(host, "_sample_walks", walked)
    for cost in host.measure_walks(graph, 1e6, 2):
        assert cost.launch_s == pytest.approx(2e-4)
        assert cost.step_s == pytest.approx(1.5e-7)
        assert cost.scan_s == pytest.approx(8e-9)


def test_loads_of_three_sizes_tell_what_a_mini_batch_a_row_and_a_byte_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    graph = open_graph("synthetic:tiny,vertices=12k")

    class Loader:
        def __init__(self, source: Any) -> None:
            self.row_bytes = source.nbytes / graph.num_vertices

        def load(self, batch: Any, plan: Any, workers: Any) -> None:
            block = batch.blocks[0]
            rows = block.num_edges + block.num_dst if plan.form == "aggregated" else block.num_src
            now[0] += 3e-4 + rows * (4e-8 + self.row_bytes / 9e9)

    monkeypatch.setattr(host, "Loader", Loader)
    monkeypatch.setattr(host, "CacheSweep", lambda targets: lambda: None)
    monkeypatch.setattr(host, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for cost, _ in host.measure_loading(graph, 1):
        # Mini-batches differ a bit in size.
        assert cost.launch_s == pytest.approx(3e-4, rel=0.1)
        assert cost.gb_s == pytest.approx(9.0, rel=0.2)
        assert cost.seconds(2000, 400) == pytest.approx(3e-4 + 2000 * (4e-8 + 400 / 9e9), rel=0.1)


def test_before_each_mini_batch_as_much_is_read_as_a_step_of_its_size_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept: list[int] = []

    class Sweep:
        def __init__(self, targets: int) -> None:
            self.targets = targets

        def __call__(self) -> None:
            swept.append(self.targets)

    class Sampler:
        def __init__(self, graph: Any, targets: Any, fanouts: Any, batch: int, seed: int) -> None:
            self.batch = batch

        def units(self, step: int) -> None:
            return None

        def sample(self, *what: Any, in_place: bool) -> Any:
            swept.append(-self.batch)
            return SimpleNamespace(num_edges=self.batch, release=lambda: None)

    monkeypatch.setattr(host, "CacheSweep", Sweep)
    monkeypatch.setattr(host, "NeighborSampler", Sampler)
    costs = [cost for cost, _ in host.measure_sampling(open_graph("synthetic:tiny"), 1e6, 1)]
    assert sorted({cost.edges for cost in costs}) == [64, 1024, 4096]
    # Of each kind of mini-batch the first, which may compile, is not timed; before every other one the caches
    # are emptied.
    sampled = [at for at, entry in enumerate(swept) if entry < 0]
    assert sum(swept[at - 1] != -swept[at] for at in sampled) == len(costs)
    assert {entry for entry in swept if entry > 0} == {64, 1024, 4096}


@pytest.mark.parametrize(("targets", "num_bytes"), [(1, 80_000), (1024, 81_920_000), (10**6, 2**28)])
def test_a_sweep_reads_and_writes_what_a_step_does(targets: int, num_bytes: int) -> None:
    sweep = host.CacheSweep(targets)
    assert sweep._buffer.nbytes == num_bytes
    sweep()
    assert (sweep._buffer == 2).all()


def test_sorting_edges_by_source_is_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now, propagating, sorted_within = [0.0], [False], []
    transposed, propagate = Block.transposed, CpuDevice.propagate

    def timed(block: Block) -> Any:
        if block._transposed is None:
            now[0] += 5e-7 * block.num_edges
            sorted_within.append(propagating[0])
        return transposed(block)

    def step(device: CpuDevice, staged: Any) -> Any:
        propagating[0] = True
        result = propagate(device, staged)
        propagating[0] = False
        return result

    def clock() -> float:
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(Block, "transposed", timed)
    monkeypatch.setattr(CpuDevice, "propagate", step)
    monkeypatch.setattr(trainers, "time", SimpleNamespace(perf_counter=clock))
    backend, info = find_device("cpu:0")
    graph = open_graph("synthetic:tiny")
    probe = Probe(features=16, hidden=8, classes=4, targets=200, fanouts=(5, 5), graph="synthetic:tiny")
    with opened(backend, info, DeviceOptions(threads=1)) as device:
        found = measure_probe(device, "graphsage", probe, graph)
    # The first layer's rows come aggregated: no gradient goes back along its edges.
    assert found.sorted_edges_per_s == pytest.approx(2e6, rel=0.1)
    # A step finds them sorted.
    assert sorted_within
    assert not any(sorted_within)
