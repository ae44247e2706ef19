"""Expected sizes of mini-batches of every kind of sampler against those that are sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counted_degrees import degree_distribution
from hyrt_perfmodel.sampler_sizes import expected_labor_sizes, expected_layerwise_sizes
from unit.sampling.small_graphs import graph_of

from hyrt.config import build_config
from hyrt.graph import open_graph
from hyrt.predict.dataset_sizes import generated_sizes
from hyrt.runtime.workers import Workers

SOURCE = "synthetic:community,vertices=8k,edges=160k,features=4,seed=3"
GRAPH = open_graph(SOURCE)
ALONE = Workers(1, "test")


def sampled_and_expected(sampler: dict[str, Any], batch: int) -> tuple[Any, Any]:
    """Means over steps, and what is expected: vertices, edges, and what drawing looks at."""
    settings = build_config({"sampler": sampler}).sampler
    targets = GRAPH.split("train")
    degrees = generated_sizes(SOURCE).degrees
    assert degrees is not None
    built = settings.build(GRAPH, targets, layers=2, batch_size=batch, seed=1)
    rows = []
    for step in range(6 if batch > 100 else 50):
        units = built.units(step)
        drawn = built.sample(step, units, ALONE, in_place=False)
        found = settings.batch_sizes(drawn, len(units))
        rows.append([*found.vertices, *found.edges, found.scanned_edges])
        drawn.release()
    units = float(settings.units_per_step(batch))
    found = settings.expected_sizes(degrees, layers=2, num_targets=len(targets), units=units)
    return np.mean(rows, axis=0), np.array([*found.vertices, *found.edges, found.scanned_edges])


@pytest.mark.parametrize("batch", [32, 512])
@pytest.mark.parametrize(("iterations", "close"), [(0, 0.04), (1, 0.06), (2, 0.08)])
def test_labor(batch: int, iterations: int, close: float) -> None:
    kind = {"kind": "labor", "fanout": [8, 8], "iterations": iterations}
    sampled, expected = sampled_and_expected(kind, batch)
    assert expected == pytest.approx(sampled, rel=close)


def test_labor_of_equal_neighbourhoods_by_hand() -> None:
    """All vertices of a complete graph have nearly the same neighbours, so nearly the same 4 are read."""
    size = 60
    complete = graph_of([[u for u in range(size) if u != v] for v in range(size)])
    found = expected_labor_sizes(degree_distribution(complete), [4], 8)
    assert found.vertices == pytest.approx((8 + 4 * 52 / 60, 8), rel=0.05)
    assert found.edges == pytest.approx((32,))
    with pytest.raises(ValueError, match="use one per layer"):
        expected_labor_sizes(degree_distribution(complete), [0], 50)


@pytest.mark.parametrize("batch", [32, 512])
@pytest.mark.parametrize(("kind", "size", "close"), [("fastgcn", 2000, 0.05), ("ladies", 1000, 0.15)])
def test_layerwise(batch: int, kind: str, size: int, close: float) -> None:
    sampled, expected = sampled_and_expected({"kind": kind, "layer_size": size}, batch)
    assert expected == pytest.approx(sampled, rel=close)


def test_layers_that_take_everything_by_hand() -> None:
    """A directed cycle: each of 10 targets has one source; with chance 1 / 2 each, half of them."""
    cycle = degree_distribution(graph_of([[(v - 1) % 5000] for v in range(5000)]))
    for among, size, per in ((True, 10**6, 1.0), (False, 10**6, 1.0), (False, 2500, 0.5), (True, 5, 0.5)):
        found = expected_layerwise_sizes(cycle, layers=1, size=size, targets=10, among_neighbors=among)
        assert found.vertices == pytest.approx((10 + 10 * per, 10), rel=0.02)
        assert found.edges == pytest.approx((10 * per,), rel=0.02)


@pytest.mark.parametrize(("hops", "neighbors"), [(1, 20), (2, 6)])
def test_shadow(hops: int, neighbors: int) -> None:
    kind = {"kind": "shadow", "hops": hops, "hop_neighbors": neighbors}
    sampled, expected = sampled_and_expected(kind, 200)
    assert expected == pytest.approx(sampled, rel=0.2)
    assert expected[:3] == pytest.approx(sampled[:3], rel=0.09)


def test_parts_by_chance() -> None:
    kind = {"kind": "cluster", "parts": 18, "parts_per_group": 3, "groups": 2, "method": "random"}
    sampled, expected = sampled_and_expected(kind, 200)
    assert expected == pytest.approx(sampled, rel=0.05)
