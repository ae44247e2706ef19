"""Between what was measured, and beyond it."""

from __future__ import annotations

import math

import pytest
from hyrt_perfmodel.measured_costs import (
    LoadCost,
    SampleCost,
    SparseCost,
    WalkCost,
    edges_per_second,
    load_seconds,
    sparse_seconds,
    walk_seconds,
)

LOADING = [
    LoadCost(form="rows", matrix_bytes=1e6, threads=1, row_s=1e-9, gb_s=10.0),
    LoadCost(form="rows", matrix_bytes=1e8, threads=1, row_s=4e-9, gb_s=2.5),
    LoadCost(form="rows", matrix_bytes=1e6, threads=4, row_s=0.25e-9, gb_s=40.0),
    LoadCost(form="rows", matrix_bytes=1e8, threads=4, row_s=1e-9, gb_s=10.0),
]


def load(matrix_bytes: float, threads: int) -> float:
    return load_seconds(LOADING, "rows", 1000, 100, matrix_bytes=matrix_bytes, threads=threads)


def test_a_measured_point_is_itself() -> None:
    assert load(1e6, 1) == pytest.approx(1000 * (1e-9 + 100 / 10e9))
    assert load(1e8, 4) == pytest.approx(1000 * (1e-9 + 100 / 10e9))


def test_between_points_in_the_logarithms() -> None:
    assert load(1e7, 1) == pytest.approx(math.sqrt(load(1e6, 1) * load(1e8, 1)))
    assert load(1e8, 2) == pytest.approx(math.sqrt(load(1e8, 1) * load(1e8, 4)))


def test_beyond_them_the_nearest() -> None:
    assert load(1e12, 1) == load(1e8, 1)
    assert load(math.inf, 64) == load(1e8, 4)
    assert load(1.0, 1) == load(1e6, 1)


def test_a_form_that_was_not_measured() -> None:
    with pytest.raises(ValueError, match="aggregated"):
        load_seconds(LOADING, "aggregated", 1, 1, matrix_bytes=1, threads=1)


def test_sampling_knows_graphs_batches_threads_and_numbering() -> None:
    table = [
        SampleCost(
            renumbers=numbered,
            graph_bytes=g,
            edges=t,
            threads=n,
            edges_per_s=1e6 * n * t / g * (1 + numbered),
        )
        for numbered in (False, True)
        for g in (1e6, 1e8)
        for t in (64, 1024)
        for n in (1, 2)
    ]

    def rate(**at: float) -> float:
        given = {"graph_bytes": 1e6, "edges": 64, "threads": 1, "renumbers": False, **at}
        return edges_per_second(table, **given)  # type: ignore[arg-type]

    assert rate() == pytest.approx(64)
    assert rate(renumbers=True) == pytest.approx(128)
    assert rate(graph_bytes=1e7) == pytest.approx(6.4)
    assert rate(edges=256) == pytest.approx(256)
    assert rate(threads=2, edges=1024, graph_bytes=1e8) == pytest.approx(20.48)


@pytest.mark.parametrize("change", [{"gb_s": 0}, {"row_s": -1}, {"threads": 0}, {"matrix_bytes": math.nan}])
def test_costs_that_are_none(change: dict) -> None:
    given = {"form": "rows", "matrix_bytes": 1.0, "threads": 1, "row_s": 0.0, "gb_s": 1.0}
    with pytest.raises(ValueError, match=next(iter(change))):
        LoadCost(**{**given, **change})


def test_walks_cost_their_steps_and_the_edges_they_look_at() -> None:
    table = [
        WalkCost(graph_bytes=graph, threads=threads, step_s=1e-7 * graph / 1e6 / threads, scan_s=1e-9)
        for graph in (1e6, 1e8)
        for threads in (1, 4)
    ]

    def seconds(graph_bytes: float, threads: int) -> float:
        return walk_seconds(table, steps=3000, scanned_edges=50_000, graph_bytes=graph_bytes, threads=threads)

    assert seconds(1e6, 1) == pytest.approx(3000e-7 + 50e-6)
    assert seconds(1e9, 4) == pytest.approx(3000 * 1e-5 / 4 + 50e-6)
    assert seconds(1e7, 1) == pytest.approx(math.sqrt(seconds(1e6, 1) * seconds(1e8, 1)))
    assert seconds(1e6, 2) == pytest.approx(math.sqrt(seconds(1e6, 1) * seconds(1e6, 4)))


def test_a_mini_batch_costs_something_however_small_it_is() -> None:
    table = [WalkCost(graph_bytes=1e6, threads=1, step_s=1e-7, scan_s=1e-9, launch_s=2e-4)]
    small = walk_seconds(table, steps=60, scanned_edges=200, graph_bytes=1e6, threads=1)
    assert small == pytest.approx(2e-4 + 60e-7 + 200e-9)
    cost = LoadCost(form="rows", matrix_bytes=1e6, threads=1, row_s=1e-9, gb_s=10.0, launch_s=3e-4)
    assert cost.seconds(100, 400) == pytest.approx(3e-4 + 100 * (1e-9 + 4e-8))


def test_sparse_products_know_widths_weights_and_threads() -> None:
    table = [
        SparseCost(
            product_width=width,
            weight_bytes=weight_bytes,
            threads=threads,
            macs_per_s=1e9 * width * threads / weight_bytes * 1e6,
            weight_s=1e-9,
        )
        for width in (16, 256)
        for weight_bytes in (1e6, 1e8)
        for threads in (1, 2)
    ]

    def seconds(width: int, weight_bytes: float, threads: int) -> float:
        return sparse_seconds(
            table,
            macs=1e6,
            weights=1e4,
            product_width=width,
            weight_bytes=weight_bytes,
            threads=threads,
        )

    assert seconds(16, 1e6, 1) == pytest.approx(1e6 / 16e9 + 1e-5)
    assert seconds(256, 1e8, 2) == pytest.approx(1e6 / (512e9 / 100) + 1e-5)
    assert seconds(64, 1e6, 1) == pytest.approx(math.sqrt(seconds(16, 1e6, 1) * seconds(256, 1e6, 1)))
    assert seconds(8, 1e9, 9) == seconds(16, 1e8, 2)
