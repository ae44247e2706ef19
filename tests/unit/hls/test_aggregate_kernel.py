"""The aggregate kernel: exact sums, each source row read once, nothing but results written."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from pathlib import Path

import hyrt_hls
import numpy as np
import pytest
from golden import golden_tasks, random_task
from hyrt_hls.simulator import compile_library
from hyrt_hls.task_layout import Task
from hyrt_perfmodel.fpga_design import LANES
from simulators import DESIGNS, assert_as_reference, bounded_simulator, needs_compiler, simulator

pytestmark = needs_compiler


def whole_numbers(task: Task, seed: int = 0) -> Task:
    """The same one layer with whole numbers and a unit matrix: its scores are A @ X, in float32 exactly."""
    rng = np.random.default_rng(seed)
    (record,) = task.records
    assert record.parts * record.in_chunks == record.out_chunks
    edges = task.edges.copy()
    edges[:, 2] = rng.integers(-4, 5, len(edges)).astype(np.float32).view(np.int32)
    unit = np.eye(record.depth + 1, record.out_chunks * LANES, dtype=np.float32)
    features = rng.integers(-8, 9, task.features.shape).astype(np.float32)
    return replace(task, features=features, edges=edges, weights=unit.ravel())


def dense_aggregate(task: Task) -> np.ndarray:
    """[rows * parts, in_chunks * LANES], edge by edge."""
    (record,) = task.records
    sums = np.zeros((record.rows * record.parts, record.in_chunks * LANES))
    for start, end, bits, _ in task.edges:
        sums[end] += task.features[start].astype(np.float64) * np.int32(bits).view(np.float32)
    return sums


@pytest.mark.parametrize("pes", DESIGNS)
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
def test_sums_are_exact(pes: int, density: float) -> None:
    task = whole_numbers(random_task(3, widths=[40, 40], counts=[61, 37], density=density, pes=pes))
    np.testing.assert_array_equal(simulator(pes).train(task).scores, dense_aggregate(task))


@pytest.mark.parametrize("pes", DESIGNS)
def test_both_parts_of_a_destination(pes: int) -> None:
    task = whole_numbers(random_task(4, widths=[32, 64], counts=[40, 23], parts=[2], pes=pes))
    np.testing.assert_array_equal(simulator(pes).train(task).scores, dense_aggregate(task).reshape(23, -1))


@pytest.mark.parametrize(
    "run", [lambda task: simulator(4).train(task), lambda task: bounded_simulator().train(task)]
)
def test_one_hot_destination_and_one_hub(run: object) -> None:
    """Every edge into one row, and every edge out of one: the interlock and the row buffer at work."""
    task = whole_numbers(random_task(5, widths=[16, 16], counts=[50, 50], density=1.0))
    star = (task.edges[:, 0] == 7) | (task.edges[:, 1] == 3)
    edges = task.edges[star]
    description = task.task.copy()
    description[16 + 11] = len(edges)
    task = replace(task, edges=edges, task=description)
    np.testing.assert_array_equal(run(task).scores, dense_aggregate(task))  # type: ignore[operator]


@pytest.mark.parametrize("name", [name for name, _ in golden_tasks()])
def test_reads_each_source_once_and_writes_results_only(name: str) -> None:
    task = dict(golden_tasks())[name]
    counts = simulator(4).train(task).counts
    records = task.records
    unique = len(np.unique(task.edges[: records[0].num_edges, 0]))
    assert counts.rows_read == unique
    assert counts.feature_words_read == unique * task.header.in_chunks
    assert counts.edges == len(task.edges)
    assert counts.intermediate_words_written == 0
    scores = task.header.targets * records[-1].out_chunks
    assert counts.words_written == scores + sum(record.weight_words for record in records)
    # Each weight once forward, and once more for the gradient of combined in layers 2 and up (without bias).
    backward = sum(record.depth * record.out_chunks for record in records[1:])
    assert counts.weight_words_read == sum(record.weight_words for record in records) + backward


def test_rows_are_read_once_across_regions() -> None:
    """More messages than a region of the simulation holds: a source's edges go on in the next one."""
    task = random_task(6, widths=[1600, 4], counts=[60, 50], density=0.5, pes=4)
    counts = simulator(4).train(task).counts
    assert len(task.edges) * task.records[0].in_chunks > 4 * 16384
    assert counts.rows_read == len(np.unique(task.edges[:, 0]))
    assert_as_reference(simulator(4).train(task), task)


@functools.cache
def gather_unit(latency: int) -> ctypes.CDLL:
    """Return a gather unit of three queues that records the addresses it takes."""
    kernels = Path(hyrt_hls.__file__).parent / "kernels"
    source = Path(__file__).parent / "simulated" / "gather.cpp"
    defines = {"HYRT_ADDER_LATENCY": latency}
    return ctypes.CDLL(str(compile_library([source], defines=defines, include=[kernels])))


@pytest.mark.parametrize("latency", [2, 7])
@pytest.mark.parametrize("most", [1, 3, 16])
def test_no_sum_is_read_while_it_is_in_the_adder(latency: int, most: int) -> None:
    """An address that was taken does not recur within ADDER_LATENCY - 1 iterations, and as soon as it may."""
    unit = gather_unit(latency)
    assert unit.adder_latency() == latency
    rng = np.random.default_rng(most)
    lengths = [40, 25, 60]
    addresses = rng.integers(0, most, sum(lengths)).astype(np.int32)
    ends = np.cumsum(lengths).astype(np.int32)
    taken, iterations = np.empty(len(addresses), np.int32), np.empty(len(addresses), np.int32)
    sums = np.empty(16, np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (addresses, ends, taken, iterations, sums)]
    assert unit.gather_recorded(*pointers) == len(addresses)
    np.testing.assert_array_equal(sums, np.bincount(addresses, minlength=16))
    gaps = np.concatenate([np.diff(np.sort(iterations[taken == address])) for address in range(most)])
    assert gaps.min() == latency if most == 1 else gaps.min() >= latency
