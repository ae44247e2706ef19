"""The kernels, the float64 reference and torch agree on the golden tasks and on random ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from golden import GOLDEN_ARENA, GOLDEN_PES, golden_tasks, random_task
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_hls.task_layout import Dropout, Task
from hyrt_perfmodel.fpga_design import LANES
from simulators import DESIGNS, assert_as_reference, bounded_simulator, needs_compiler, simulator
from unit.hls.task_reference import dropout_factors, run_reference

from hyrt.nn.operators.dropout import dropout
from hyrt.runtime.rng import DROPOUT, stream_key

NAMES = [name for name, _ in golden_tasks()]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_torchs_autograd(name: str) -> None:
    task = dict(golden_tasks())[name]
    task.check(GOLDEN_ARENA, GOLDEN_PES)
    scores, gradients, results = run_reference(task)

    weights = torch.tensor(task.weights, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor(
        task.features * dropout_factors(task.header.dropout, task.vertices, task.features.shape[1])
    )
    for r in task.records:
        matrix = weights[r.weights * LANES : (r.weights + r.weight_words) * LANES].reshape(r.depth + 1, -1)
        rows = (_adjacency(task, r.first_edge, r.num_edges, r.rows * r.parts, r.num_src) @ rows).reshape(
            r.rows, -1
        )
        rows = rows @ matrix[:-1] + matrix[-1]
        rows = (rows.relu() if r.relu else rows) * torch.tensor(
            dropout_factors(r.dropout, task.vertices[: r.rows], rows.shape[1])
        )
    losses = torch.nn.functional.cross_entropy(
        rows[:, : task.header.classes], torch.tensor(task.labels, dtype=torch.int64), reduction="none"
    )
    loss_sum = (losses * torch.tensor(task.target_weights)).sum()
    loss_sum.backward()

    np.testing.assert_allclose(scores, rows.detach(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradients, weights.grad, rtol=1e-10, atol=1e-12)
    assert results[0] == pytest.approx(loss_sum.item(), rel=1e-12)
    assert results[1] == int((rows[:, : task.header.classes].argmax(1) == torch.tensor(task.labels)).sum())


def _adjacency(task: Task, first: int, count: int, rows: int, num_src: int) -> torch.Tensor:
    dense = torch.zeros(rows, num_src, dtype=torch.float64)
    for start, end, bits, _ in task.edges[first : first + count]:
        dense[end, start] += float(np.int32(bits).view(np.float32))
    return dense


@given(rate=st.floats(0, 0.99), width=st.integers(1, 70), step=st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_masks_are_those_of_hyrt_nn(rate: float, width: int, step: int) -> None:
    vertices = np.array([0, 7, 2**40, 123456789])
    expected = dropout(torch.ones(4, width), vertices, rate=rate, seed=5, step=step, layer=2)
    threshold = min(round(rate * 65536), 65535)
    key = int(stream_key(5, DROPOUT, step, 2))
    drawn = dropout_factors(Dropout(threshold, 65536 / (65536 - threshold), key), vertices, width)
    np.testing.assert_allclose(drawn, np.asarray(expected), rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("pes", DESIGNS)
@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_give_the_references_results(name: str, pes: int) -> None:
    task = dict(golden_tasks(pes))[name]
    assert_as_reference(simulator(pes).train(task), task)


@needs_compiler
@pytest.mark.parametrize("name", ["concatenated", "dropout", "no edges", "hub"])
def test_bounded_queues_and_threads_give_the_references_results(name: str) -> None:
    task = dict(golden_tasks())[name]
    assert_as_reference(bounded_simulator().train(task), task)


# Not random: a sum that rounds to the other side of a ReLU's zero is possible, and would be no mistake.
@needs_compiler
@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_tasks(data: st.DataObject) -> None:
    pes = data.draw(st.sampled_from(list(DESIGNS)))
    layers = data.draw(st.integers(1, 3))
    task = random_task(
        data.draw(st.integers(0, 2**32)),
        widths=data.draw(st.lists(st.integers(1, 50), min_size=layers + 1, max_size=layers + 1)),
        counts=sorted(
            data.draw(st.lists(st.integers(1, 40), min_size=layers + 1, max_size=layers + 1)), reverse=True
        ),
        parts=data.draw(st.lists(st.integers(1, 2), min_size=layers, max_size=layers)),
        relu=data.draw(st.lists(st.booleans(), min_size=layers, max_size=layers)),
        rates=data.draw(st.lists(st.sampled_from([0.0, 0.2, 0.5]), min_size=layers + 1, max_size=layers + 1)),
        density=data.draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        weighted=data.draw(st.booleans()),
        pes=pes,
    )
    outcome = simulator(pes).train(task)
    assert_as_reference(outcome, task)
    assert outcome.counts.intermediate_words_written == 0
