"""Schedules of chunks: tasks in queues, filters, swaps, chains and whole epochs."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.chunk_costs import (
    ChunkMachine,
    ChunkRates,
    GridSizes,
    chunk_machine,
    expected_grid,
    group_machine,
)
from hyrt_perfmodel.chunk_schedule import (
    ChunkSchedule,
    assign_columns,
    filter_threshold,
    min_parts_for_speeds,
    order_by_swaps,
    pipelined_s,
)
from hyrt_perfmodel.chunked_epoch import EpochTasks, simulate_epoch
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.task_simulation import QueuedTask, run_tasks
from hyrt_perfmodel.workload import GatherLayer

RATES = ChunkRates(link_bytes_per_s=1e9, memory_bytes_per_s=2e10, macs_per_s=1e11)
LAYERS = (
    GatherLayer(gather_width=64, out_width=16, has_input_grad=False),
    GatherLayer(gather_width=16, out_width=8),
)
GRID = expected_grid(DegreeDistribution.assumed(20_000, 400_000), 4, inside=0.6)
times = st.floats(0.01, 10)


def machine(count: int = 1, *, per_switch: int = 2, rates: ChunkRates = RATES) -> ChunkMachine:
    switches = tuple(device // per_switch for device in range(count))
    return ChunkMachine(
        devices=(rates,) * count,
        switches=switches,
        switch_bytes_per_s=(rates.link_bytes_per_s,) * (switches[-1] + 1),
        filter_bytes_per_s=4e9,
    )


def test_two_that_share_a_link() -> None:
    """Each takes 2 s alone; together they have half of the link each, until the shorter one is through."""
    link = (("link", 10.0),)
    tasks = [
        QueuedTask("a", 2.0, uses=link),
        QueuedTask("b", 3.0, uses=link),
        QueuedTask("a", 1.0),
        QueuedTask("c", 1.0, needs=(1, 2)),
    ]
    run = run_tasks(tasks, {"link": 10.0})
    assert run.begin_s == pytest.approx((0, 0, 4, 5))
    assert run.end_s == pytest.approx((4, 5, 5, 6))


@given(st.lists(st.tuples(st.sampled_from("abc"), times, st.sets(st.integers(0, 8))), max_size=9))
def test_tasks_without_shared_resources(drawn: list[tuple[str, float, set[int]]]) -> None:
    """A task begins when the one before it in its queue and all that it needs have ended."""
    tasks = [
        QueuedTask(queue, seconds, tuple(sorted(n for n in needs if n < number)))
        for number, (queue, seconds, needs) in enumerate(drawn)
    ]
    run = run_tasks(tasks, {})
    ends: list[float] = []
    last: dict[str, float] = {}
    for number, task in enumerate(tasks):
        begin = max([last.get(task.queue, 0.0), *(ends[n] for n in task.needs)])
        ends.append(begin + task.seconds)
        last[task.queue] = ends[-1]
        assert run.begin_s[number] == pytest.approx(begin)
        assert run.end_s[number] == pytest.approx(ends[-1])


def test_a_task_that_needs_a_later_one() -> None:
    with pytest.raises(ValueError, match=r"task 0 \(a\) needs task 1"):
        run_tasks([QueuedTask("a", 1.0, (1,)), QueuedTask("a", 1.0)], {})


@given(times, times, st.floats(0.001, 1))
def test_filtering_saves_time_below_the_limit(copy: float, transfer: float, useful: float) -> None:
    filtered = useful / copy + useful / transfer
    limit = filter_threshold(copy, transfer)
    if useful < limit * (1 - 1e-9):
        assert filtered < 1 / transfer
    if useful > limit * (1 + 1e-9):
        assert filtered > 1 / transfer
    assert filter_threshold(copy, math.inf) == 0


@given(st.lists(st.tuples(times, times), min_size=1, max_size=6), st.integers(1, 4))
def test_the_pipeline_equals_its_tasks(chunks: list[tuple[float, float]], room: int) -> None:
    tasks: list[QueuedTask] = []
    for number, (copy, compute) in enumerate(chunks):
        free = (2 * (number - room) + 1,) if number >= room else ()
        tasks.append(QueuedTask("copy", copy, free))
        tasks.append(QueuedTask("compute", compute, (2 * number,)))
    copies, computes = zip(*chunks, strict=True)
    assert pipelined_s(range(len(chunks)), copies, computes, room) == pytest.approx(
        run_tasks(tasks, {}).total_s
    )


@given(st.lists(st.tuples(times, times), min_size=1, max_size=6), st.integers(2, 4))
def test_swaps_never_cost_time(chunks: list[tuple[float, float]], room: int) -> None:
    copies, computes = zip(*chunks, strict=True)
    order = order_by_swaps(copies, computes, room)
    assert sorted(order) == list(range(len(chunks)))
    found = pipelined_s(order, copies, computes, room)
    best = min(pipelined_s(each, copies, computes, room) for each in permutations(range(len(chunks))))
    assert best - 1e-9 <= found <= pipelined_s(range(len(chunks)), copies, computes, room) + 1e-9


def test_swaps_find_the_best_order() -> None:
    """Two that compute long beside four that copy long."""
    copies, computes = (1, 1, 4, 4, 4, 4), (8, 8, 1, 1, 1, 1)
    found = pipelined_s(order_by_swaps(copies, computes, 2), copies, computes, 2)
    best = min(pipelined_s(each, copies, computes, 2) for each in permutations(range(6)))
    assert found == best < pipelined_s((2, 3, 4, 5, 0, 1), copies, computes, 2)


@given(st.integers(0, 30), st.lists(st.floats(0.1, 10), min_size=1, max_size=5))
def test_columns_are_dealt_by_speed(parts: int, speeds: list[float]) -> None:
    dealt = assign_columns(parts, tuple(speeds))
    assert sorted(column for mine in dealt for column in mine) == list(range(parts))
    end = max(len(mine) / speed for mine, speed in zip(dealt, speeds, strict=True))
    # Nobody else would have been through with one more before the last one is.
    assert all((len(mine) + 1) / speed >= end - 1e-9 for mine, speed in zip(dealt, speeds, strict=True))


@pytest.mark.parametrize(
    ("speeds", "parts"),
    [
        ((0.3,), 1),
        ((1.0, 1.0), 2),
        ((1.0, 1.0, 1.0), 3),
        # The slow one takes as long for its first as the fast one for its third.
        ((1.0, 3.0), 3),
        ((3.0, 1.0), 4),
        ((1.0, 100.0), 16),
        ((1.0,) * 20, 20),
    ],
)
def test_the_least_parts_leave_no_device_idle(speeds: tuple[float, ...], parts: int) -> None:
    assert min_parts_for_speeds(speeds) == parts


def test_chunk_by_chunk_is_the_sum_of_all() -> None:
    epoch = simulate_epoch(GRID, LAYERS, machine(), ChunkSchedule(fused=True))
    assert epoch.hidden_fraction == 0
    assert epoch.seconds == pytest.approx(sum(task.seconds for task in epoch.tasks))


def bytes_of(epoch_tasks: tuple[QueuedTask, ...], queue: str) -> float:
    return sum(task.seconds for task in epoch_tasks if task.queue == queue) * RATES.link_bytes_per_s


def test_what_is_copied() -> None:
    """By hand: rows P times, edges once a pass; what layer 1 gathered and made, and the former again."""
    epoch = simulate_epoch(GRID, LAYERS, machine(), ChunkSchedule(fused=True))
    rows, edges, parts = 4 * 20_000, 8 * 400_000, 4
    forward = sum(parts * rows * width + edges for width in (64, 16))
    backward = parts * rows * 16 + edges
    assert bytes_of(epoch.tasks, "copy in 0") == pytest.approx(forward + backward + rows * 64)
    # Beside, the gradient of what layer 2 gathered.
    assert bytes_of(epoch.tasks, "copy out 0") == pytest.approx(rows * (64 + 16) + rows * 16)


def test_each_edge_is_gathered_once_a_pass() -> None:
    for schedule in (
        ChunkSchedule(fused=True),
        ChunkSchedule(fused=True, order="row-column"),
        ChunkSchedule(fused=True, sub_chunks=3, swaps=True, chain=True, selective=True),
    ):
        epoch = simulate_epoch(GRID, LAYERS, machine(3), schedule)
        gathered = sum(task.seconds for task in epoch.tasks if ": gather " in task.name)
        # Layer 1 forward, layer 2 both ways.
        expected = sum(400_000 * (4 * width + 8) for width in (64, 16, 16)) / RATES.memory_bytes_per_s
        assert gathered == pytest.approx(expected)


def test_rows_that_stay_cost_sums_that_come_and_go() -> None:
    plain = simulate_epoch(GRID, LAYERS, machine(), ChunkSchedule(fused=True))
    turned = simulate_epoch(GRID, LAYERS, machine(), ChunkSchedule(fused=True, order="row-column"))
    rows, parts = 4 * 20_000, 4
    saved = sum((parts - 1) * rows * width for width in (64, 16, 16))
    added = 2 * saved
    assert turned.copy_s - plain.copy_s == pytest.approx((added - saved) / RATES.link_bytes_per_s)


def test_a_pipeline_hides_copies_and_moves_the_same_bytes() -> None:
    plain = simulate_epoch(GRID, LAYERS, machine(), ChunkSchedule(fused=True))
    piped = simulate_epoch(GRID, LAYERS, machine(), ChunkSchedule(fused=True, sub_chunks=4, swaps=True))
    assert piped.seconds < plain.seconds
    assert piped.hidden_fraction > 0.1
    assert bytes_of(piped.tasks, "copy in 0") == pytest.approx(bytes_of(plain.tasks, "copy in 0"))


def test_filters_are_where_they_pay() -> None:
    """Off the diagonal few vertices are needed; on it nearly all."""
    sparse = expected_grid(DegreeDistribution.assumed(20_000, 60_000), 4, inside=0.95)
    plain = simulate_epoch(sparse, LAYERS, machine(), ChunkSchedule(fused=True))
    chosen = simulate_epoch(sparse, LAYERS, machine(), ChunkSchedule(fused=True, selective=True))
    assert chosen.seconds < plain.seconds
    filtered = {task.name for task in chosen.tasks if task.queue == "filter 0"}
    limit = filter_threshold(4e9, 1e9)
    off = sum(sparse.sources[i, j] / sparse.rows[i] < limit for i in range(4) for j in range(4) if i != j)
    assert off == 12
    assert len(filtered) == 3 * 4  # Each of three passes filters every source for some column.


def test_columns_that_need_other_rows_bring_their_union() -> None:
    """Halves that are drawn independently of each other: two columns need 3/4 of the rows, three 7/8."""
    fifty = np.full((4, 4), 50.0)
    half = GridSizes(rows=np.full(4, 100.0), edges=4 * fifty, sources=fifty, destinations=fifty)
    schedule = ChunkSchedule(fused=True, selective=True, filter_below=1.0)
    tasks = EpochTasks(half, half, machine(), schedule)
    read = SimpleNamespace(grid=half, read_width=16)
    for columns, part in (([0], 1 / 2), ([0, 1], 3 / 4), ([0, 1, 3], 7 / 8)):
        size, is_filtered = tasks._source_bytes([0], columns, cast(Any, read))
        assert size == pytest.approx([part * 100 * 16 * 4] * 4)
        assert all(is_filtered)


def test_a_chain_takes_the_shared_link_once() -> None:
    without = simulate_epoch(GRID, LAYERS, machine(2), ChunkSchedule(fused=True, sub_chunks=2))
    chained = simulate_epoch(GRID, LAYERS, machine(2), ChunkSchedule(fused=True, sub_chunks=2, chain=True))
    assert chained.seconds < without.seconds
    passed_on = [task for task in chained.tasks if "passed on" in task.name]
    assert passed_on
    assert all(task.uses == () and task.queue == "copy in 1" for task in passed_on)


def test_devices_of_one_switch_share_its_link() -> None:
    apart = simulate_epoch(GRID, LAYERS, machine(2, per_switch=1), ChunkSchedule(fused=True, sub_chunks=2))
    shared = simulate_epoch(GRID, LAYERS, machine(2, per_switch=2), ChunkSchedule(fused=True, sub_chunks=2))
    assert apart.seconds < 0.8 * shared.seconds


def test_memory_that_is_read_in_place() -> None:
    """Nothing is copied or filtered, and whatever is done takes as long as its computing."""
    rates = replace(RATES, link_bytes_per_s=math.inf)
    plan = ChunkSchedule(fused=True, selective=True, sub_chunks=2)
    epoch = simulate_epoch(GRID, LAYERS, machine(rates=rates), plan)
    assert epoch.copy_s == 0
    assert not [task for task in epoch.tasks if task.queue.startswith("filter")]
    assert epoch.seconds == pytest.approx(epoch.compute_s)


def test_more_devices_than_columns() -> None:
    one = GridSizes(*(np.array(each, float) for each in ([10], [[30]], [[9]], [[8]])))
    epoch = simulate_epoch(one, LAYERS, machine(3), ChunkSchedule(fused=True, chain=True))
    assert {task.queue for task in epoch.tasks if task.seconds} <= {"copy in 0", "compute 0", "copy out 0"}


def test_a_platform_with_two_switches() -> None:
    found = chunk_machine(load_platform("8x-p100"), "gcn")
    assert found.switches == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.switch_bytes_per_s == (12e9, 12e9)
    shared = load_platform("8x-p100")
    assert group_machine(shared.trainers("gcn"), shared.host) == found
    assert found.filter_bytes_per_s == 57.6e9 / 2
    alone = chunk_machine(load_platform("2x-epyc7763-4x-a5000"), "gcn")
    assert alone.switches == (0, 1, 2, 3)
    assert alone.switch_bytes_per_s == (24e9,) * 4
