"""Simulated trainers, each compiled once, for tests of the kernels."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from golden import GOLDEN_ARENA
from hyrt_hls.resources import KernelDesign
from hyrt_hls.simulator import Simulator, TaskOutcome
from hyrt_hls.task_layout import Task
from unit.hls.task_reference import run_reference

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the kernels are simulated with g++: there is none"
)

# Arrays whose rows are part of a word, a part of a word with several banks, and several words.
DESIGNS = {
    2: KernelDesign(2, 2, 16, GOLDEN_ARENA),
    4: KernelDesign(4, 4, 16, GOLDEN_ARENA),
    8: KernelDesign(8, 32, 32, GOLDEN_ARENA),
}


@functools.cache
def simulator(pes: int) -> Simulator:
    """The exact one of `DESIGNS[pes]`."""
    return Simulator(DESIGNS[pes])


@functools.cache
def bounded_simulator() -> Simulator:
    """With the shallowest queues there are, and a thread a process."""
    return Simulator(KernelDesign(4, 4, 16, GOLDEN_ARENA, fifo_depth=2), bounded=True)


def hls4mls_headers() -> Path:
    """Vitis HLS's headers as hls4ml bundles them; the test is skipped where it is not installed."""
    package = importlib.util.find_spec("hls4ml")
    if package is None or not package.submodule_search_locations:
        pytest.skip("hls4ml, whose bundled headers are wanted, is not installed")
    return Path(package.submodule_search_locations[0]) / "templates" / "vivado" / "ap_types"


def assert_as_reference(outcome: TaskOutcome, task: Task) -> None:
    scores, gradients, results = run_reference(task)
    scale = max(1.0, np.abs(gradients).max())
    np.testing.assert_allclose(outcome.scores, scores, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(outcome.gradients, gradients, rtol=1e-5, atol=2e-6 * scale)
    np.testing.assert_allclose(outcome.loss_sum, results[0], rtol=1e-5)
    assert outcome.correct == results[1]
