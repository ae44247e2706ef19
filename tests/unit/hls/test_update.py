"""The update kernel and the weight gradient: exact products in any shape of the array."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from golden import random_task
from hyrt_hls.task_layout import Task
from hyrt_perfmodel.fpga_design import LANES
from simulators import DESIGNS, needs_compiler, simulator

pytestmark = needs_compiler


def whole_weights(task: Task) -> Task:
    """The same task with whole features, weights and edges of weight 1: every sum is exact in float32."""
    rng = np.random.default_rng(1)
    edges = task.edges.copy()
    edges[:, 2] = np.float32(1).view(np.int32)
    features = rng.integers(-3, 4, task.features.shape).astype(np.float32)
    features[:, task.header.in_width :] = 0
    weights = np.sign(task.weights) * rng.integers(1, 4, len(task.weights)).astype(np.float32)
    return replace(task, features=features, edges=edges, weights=weights)


def dense_product(task: Task) -> np.ndarray:
    (record,) = task.records
    sums = np.zeros((record.rows * record.parts, record.in_chunks * LANES))
    np.add.at(sums, task.edges[:, 1], task.features[task.edges[:, 0]])
    matrix = task.weights.reshape(record.depth + 1, -1).astype(np.float64)
    return sums.reshape(record.rows, -1) @ matrix[:-1] + matrix[-1]


@pytest.mark.parametrize("pes", DESIGNS)
@pytest.mark.parametrize(
    ("widths", "rows"), [([1, 1], 1), ([16, 16], 4), ([17, 40], 33), ([33, 100], 65), ([260, 33], 31)]
)
@pytest.mark.parametrize("parts", [1, 2])
def test_products_are_exact(pes: int, widths: list[int], rows: int, parts: int) -> None:
    task = whole_weights(random_task(1, widths=widths, counts=[rows + 9, rows], parts=[parts], pes=pes))
    np.testing.assert_array_equal(simulator(pes).train(task).scores, dense_product(task))


def test_relu() -> None:
    task = whole_weights(random_task(2, widths=[20, 20], counts=[30, 20], relu=[True]))
    expected = dense_product(task)
    assert (expected < 0).any()
    np.testing.assert_array_equal(simulator(4).train(task).scores, np.maximum(expected, 0))


@pytest.mark.parametrize("pes", DESIGNS)
@pytest.mark.parametrize("parts", [1, 2])
def test_the_gradient_is_the_losses_slope(pes: int, parts: int) -> None:
    """Central differences of the simulated loss itself, along random directions."""
    task = random_task(
        12, widths=[20, 17, 4], counts=[20, 13, 8], parts=[parts, parts], relu=[False, False], pes=pes
    )
    rng = np.random.default_rng(2)
    gradients = simulator(pes).train(task).gradients
    for _ in range(3):
        direction = rng.standard_normal(len(task.weights)).astype(np.float32) * (task.weights != 0)
        direction /= np.linalg.norm(direction)
        up, down = (
            simulator(pes)
            .train(replace(task, weights=task.weights + sign * np.float32(0.05) * direction))
            .loss_sum
            for sign in (1, -1)
        )
        assert (up - down) / 0.1 == pytest.approx(float(gradients @ direction), rel=0.02, abs=0.02)


@pytest.mark.parametrize("pes", DESIGNS)
def test_padding_stays_zero(pes: int) -> None:
    """Lanes beyond a width hold zeros in scores and gradients, whatever the features' padding holds."""
    task = random_task(4, widths=[20, 17, 5], counts=[20, 13, 8], parts=[2, 1], pes=pes)
    task.features[:, 20:] = 1e6
    outcome = simulator(pes).train(task)
    assert not outcome.scores[:, 5:].any()
    for record in task.records:
        words = outcome.gradients[record.weights * LANES :][: record.weight_words * LANES]
        assert not words.reshape(record.depth + 1, -1)[:, record.out_width :].any()
