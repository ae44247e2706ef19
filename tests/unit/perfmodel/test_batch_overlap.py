"""Rows that threads share in chunks, against threads that draw one chunk after the other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Host, Platform, TrainerRates
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.stage_times import stage_times
from hyrt_perfmodel.prediction.stages import effective_rows, with_effective_rows
from hyrt_perfmodel.workload import LoadForm, TrainingWorkload


@given(st.integers(0, 20_000), st.sampled_from([1, 100, 256, 1024]), st.integers(1, 9))
def test_the_busiest_thread_bounds_a_product(rows: int, chunk: int, threads: int) -> None:
    busy = [0] * threads
    for start in range(0, rows, chunk):
        busy[busy.index(min(busy))] += min(chunk, rows - start)
    assert effective_rows(rows, chunk, threads) == threads * max(busy)


def test_inputs_are_not_computed_and_one_thread_shares_nothing() -> None:
    work = model_workload("gcn", (9000, 1366, 128), (2000, 900), (10, 20, 3))
    assert with_effective_rows(work, 1024, 2).vertices == (9000, 2 * 1024, 2 * 128)
    assert with_effective_rows(work, 1024, 1) is work
    assert with_effective_rows(work, None, 2) is work


def step_s(threads: int, rows: float, form: LoadForm = "rows", edges: float = 0, **rates: Any) -> float:
    """A step of `rows` targets whose products take 1 ms for 1000 rows with both of two cores."""
    both = TrainerRates(memory_gb_s=math.inf, macs_per_s=1e6 * 2 * 50, **rates)
    alone = TrainerRates(memory_gb_s=math.inf, macs_per_s=1e6 * 50, **rates)
    of_kind = {"models": {"gcn": both}, "models_alone": {"gcn": alone}}
    host = Host(memory_gb_s=1.0, macs_per_s=1.0, cores=2, forms=(form,), **of_kind)
    entries = 4.0 if form == "sparse" else None
    work = model_workload("gcn", (rows, rows), (edges,), (10, 5), row_entries=entries)
    training = TrainingWorkload(at=lambda units: work, targets_per_epoch=1, batch_size=1, model="gcn")
    one = Assignment(split=(1,), threads=Threads(sample=1, load=1, train=threads))
    return stage_times(Platform(name="two", host=host), training, one).trainer_propagate_s[0]


def test_a_step_with_rows_for_one_chunk_is_no_faster_with_two_threads() -> None:
    assert step_s(2, 1000) == pytest.approx(1e-3)
    assert step_s(2, 1000, chunk_rows=1000) == pytest.approx(2e-3)
    assert step_s(1, 1000, chunk_rows=1000) == pytest.approx(2e-3)
    # Of two and a half chunks, one thread computes one and a half.
    assert step_s(2, 2500, chunk_rows=1000) == pytest.approx(3e-3)


def test_sparse_rows_have_a_launch_of_their_own() -> None:
    costs = {"launch_s": 5e-3, "layer_s": 1e-3, "sparse_launch_s": 2.5e-3}
    assert step_s(2, 1000, **costs) == pytest.approx(1e-3 + 4e-3)
    rest_s = step_s(2, 1000, "sparse")
    assert step_s(2, 1000, "sparse", **costs) == pytest.approx(rest_s + 1.5e-3)


def test_results_and_their_rows_cost_on_top_of_what_enters() -> None:
    # 1,000 rows of 5 values.
    for rates, added_s in (({"results_per_s": 1e6}, 5e-3), ({"rows_per_s": 1e6}, 1e-3)):
        assert step_s(1, 1000, **rates) - step_s(1, 1000) == pytest.approx(added_s)


def test_each_weight_costs_whatever_the_threads_and_the_rows() -> None:
    for threads, rows in ((1, 10), (2, 1000)):
        added = step_s(threads, rows, weights_per_s=1e4) - step_s(threads, rows)
        assert added == pytest.approx(50 / 1e4)


def test_one_thread_sorts_the_edges_by_source() -> None:
    # Also where one of two threads has two of three chunks of rows, and the other waits for it.
    for threads, chunk_rows in ((1, None), (2, None), (2, 400)):
        unsorted_s = step_s(threads, 1000, edges=3e4, chunk_rows=chunk_rows)
        sorted_s = step_s(threads, 1000, edges=3e4, chunk_rows=chunk_rows, sorted_edges_per_s=1e7)
        assert sorted_s - unsorted_s == pytest.approx(3e-3)
