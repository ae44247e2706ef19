"""A launch as a whole: what it refuses, that it repeats, and that the top function is what is simulated."""

from __future__ import annotations

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from golden import golden_tasks, random_task
from hyrt_hls.resources import KernelDesign
from hyrt_hls.simulator import HEADERS, KERNELS, SOURCE, Simulator, TaskOutcome, compile_library, macros
from simulators import DESIGNS, assert_as_reference, hls4mls_headers, needs_compiler, simulator


def assert_same(a: TaskOutcome, b: TaskOutcome) -> None:
    np.testing.assert_array_equal(a.scores, b.scores)
    np.testing.assert_array_equal(a.gradients, b.gradients)
    assert (a.loss_sum, a.correct) == (b.loss_sum, b.correct)


@needs_compiler
def test_what_earlier_tasks_left_on_chip_does_not_matter() -> None:
    tasks = dict(golden_tasks(8))
    first = {name: simulator(8).train(task) for name, task in tasks.items()}
    for name in reversed(tasks):
        assert_same(simulator(8).train(tasks[name]), first[name])


@needs_compiler
def test_losses_are_added_with_their_rounding_errors() -> None:
    """One heavy target and many light ones, whose losses float32 would lose beside it."""
    task = random_task(8, widths=[4, 3], counts=[400, 400], density=0.01, weighted=False)
    weights = np.ones(400, np.float32)
    weights[0] = 2**28
    outcome = simulator(4).train(replace(task, target_weights=weights))
    scores = outcome.scores[:, :3]
    tops = scores.max(axis=1)
    totals = np.exp(scores - tops[:, None]).sum(axis=1, dtype=np.float32)
    losses = weights * (np.log(totals) - (scores[np.arange(400), task.labels] - tops))
    assert outcome.loss_sum == pytest.approx(losses.sum(dtype=np.float64), abs=60)
    assert abs(float(losses.cumsum(dtype=np.float32)[-1]) - losses.sum(dtype=np.float64)) > 300


@needs_compiler
def test_launches_of_several_threads() -> None:
    tasks = [task for _, task in golden_tasks()]
    alone = [simulator(4).train(task) for task in tasks]
    with ThreadPoolExecutor(4) as pool:
        for a, b in zip(pool.map(simulator(4).train, tasks * 3), alone * 3, strict=True):
            assert_same(a, b)


@needs_compiler
def test_the_kernels_top_function_is_what_is_simulated() -> None:
    """`hyrt_train` as v++ builds it, with plain pointers for its ports."""
    design = DESIGNS[4]
    library = ctypes.CDLL(
        str(
            compile_library(
                [KERNELS / "trainer.cpp"],
                defines={
                    "HYRT_PES": design.pes,
                    "HYRT_MAC_ROWS": design.mac_rows,
                    "HYRT_MAC_COLS": design.mac_cols,
                    "HYRT_ARENA_WORDS": design.arena_words,
                },
            )
        )
    )
    library.hyrt_train.restype = None
    for _, task in golden_tasks():
        expected = simulator(4).train(task)
        written = [np.zeros_like(expected.scores), np.zeros_like(expected.gradients), np.zeros(2, np.float32)]
        read = [
            task.features,
            task.edges,
            task.weights,
            task.labels,
            task.target_weights,
            task.vertices,
            task.task,
        ]
        arrays = [_aligned(array) for array in read + written]
        library.hyrt_train(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))
        np.testing.assert_array_equal(arrays[7], expected.scores)
        np.testing.assert_array_equal(arrays[8], expected.gradients)
        np.testing.assert_array_equal(arrays[9], [expected.loss_sum, expected.correct])


@needs_compiler
def test_the_trainer_computes_the_same_with_hls4mls_streams(capfd: pytest.CaptureFixture[str]) -> None:
    headers = hls4mls_headers()
    design = DESIGNS[4]
    defines = [f"-D{name}={value}" for name, value in macros(design).items()]
    folders = [f"-I{folder}" for folder in (headers, KERNELS, HEADERS)]
    listed = subprocess.run(
        ["g++", "-std=c++17", "-M", *defines, *folders, SOURCE], capture_output=True, text=True, check=True
    )
    assert str(headers / "hls_stream.h") in listed.stdout
    assert str(HEADERS / "hls_stream.h") not in listed.stdout
    other = Simulator(design, include=[headers])
    for _, task in golden_tasks():
        assert_same(other.train(task), simulator(4).train(task))
    other.close()
    # Its streams warn when they are read empty, or left with something in them.
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a word, as memory of a card does."""
    room = np.zeros(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@needs_compiler
def test_scores_that_are_no_numbers() -> None:
    """A NaN is the largest score, the first of equal ones wins; the loss is NaN, and says so."""
    task = random_task(3, widths=[4, 3], counts=[6, 6], density=0.0)
    task.weights[:] = 0
    for labels, correct in ((0, 6), (1, 0)):
        task.labels[:] = labels
        assert simulator(4).train(task).correct == correct
    (record,) = task.records
    task.weights[record.depth * 16 + 2] = np.nan
    task.labels[:] = 2
    outcome = simulator(4).train(task)
    assert np.isnan(outcome.loss_sum)
    assert outcome.correct == 6


@needs_compiler
def test_large_scores() -> None:
    task = random_task(3, widths=[4, 3], counts=[6, 6])
    task.weights[:] *= 1e4
    assert_as_reference(simulator(4).train(task), task)


@needs_compiler
def test_a_task_that_does_not_fit_is_refused() -> None:
    """Its row memory would end behind the arena's end."""
    task = random_task(1, widths=[64, 64, 64], counts=[900, 800, 700], density=0.01, arena_words=8192)
    task.check(8192, 4)
    with pytest.raises(ValueError, match="of a bank, but its memory has"):
        simulator(4).train(task)


@pytest.mark.parametrize(
    "sizes",
    [
        {"pes": 0},
        {"mac_cols": 24},
        {"pes": 8, "mac_rows": 4},
        {"pes": 4, "mac_rows": 20},
        {"arena_words": 1},
        {"fifo_depth": 1},
    ],
)
def test_designs_that_the_kernels_do_not_take(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="design: "):
        KernelDesign(**sizes)
