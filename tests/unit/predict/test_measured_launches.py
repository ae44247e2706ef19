"""What calibration makes of the times of sampling subgraphs and of loading: the costs that were put in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes

from hyrt.graph import open_graph
from hyrt.predict.calibrate import host


def test_walks_of_three_sizes_tell_what_a_mini_batch_a_step_and_an_edge_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = open_graph("synthetic:tiny")

    def walked(edges: int, settings: Any, workers: Any, sweep: Any) -> tuple[BlockSizes, float]:
        steps, scanned = 3.0 * settings.roots, edges * settings.roots / 4000
        sizes = BlockSizes(vertices=(1.0,), edges=(), walk_steps=steps, scanned_edges=scanned)
        return sizes, 2e-4 + 1.5e-7 * steps + 8e-9 * scanned

    monkeypatch.setattr(host, "SaintSampler", lambda graph, *rest, **more: graph.num_edges)
    monkeypatch.setattr(host, "_walked", walked)
    for cost in host.walking(graph, 1e6, 2):
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
    for cost, _ in host.loading(graph, 1):
        # Mini-batches differ a bit in size.
        assert cost.launch_s == pytest.approx(3e-4, rel=0.1)
        assert cost.gb_s == pytest.approx(9.0, rel=0.2)
        assert cost.seconds(2000, 400) == pytest.approx(3e-4 + 2000 * (4e-8 + 400 / 9e9), rel=0.1)
