"""What a task's result is, in float64: the definition that kernels and their simulation are compared with."""

from __future__ import annotations

import numpy as np
from hyrt_hls.task_layout import Dropout, LayerRecord, Task
from hyrt_perfmodel.fpga_design import LANES
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def run_reference(task: Task) -> tuple[Doubles, Doubles, Doubles]:
    """Forward, loss and backward of a task.

    Returns
    -------
    scores [targets, out_chunks * LANES], gradients in the layout of `Task.weights`, results [2] (sum of
    losses, correct targets).
    """
    header, records = task.header, task.records
    rows = task.features.astype(np.float64) * dropout_factors(
        header.dropout, task.vertices, task.features.shape[1]
    )
    kept = []
    for r in records:
        combined = _aggregated(task, r.first_edge, r.num_edges, rows, r.rows * r.parts).reshape(
            r.rows, r.depth
        )
        before = combined @ _matrix(task, r)[:-1] + _matrix(task, r)[-1]
        slope = dropout_factors(r.dropout, task.vertices[: r.rows], before.shape[1])
        if r.relu:
            slope = slope * (before > 0)
        rows = before * slope
        kept.append((combined, slope))

    grad, results = _cross_entropy(rows[:, : header.classes], task.labels, task.target_weights)
    scores, gradients = rows, np.zeros(len(task.weights))
    grad = np.pad(grad, ((0, 0), (0, rows.shape[1] - header.classes)))
    for r, (combined, slope) in zip(reversed(records), reversed(kept), strict=True):
        grad = grad * slope
        of_layer = np.vstack([combined.T @ grad, grad.sum(0)])
        gradients[r.weights * LANES : (r.weights + r.weight_words) * LANES] = of_layer.ravel()
        if r is not records[0]:
            of_combined = (grad @ _matrix(task, r)[:-1].T).reshape(r.rows * r.parts, -1)
            grad = _aggregated(task, r.first_backward_edge, r.num_backward_edges, of_combined, r.num_src)
    return scores, gradients, results


def dropout_factors(dropout: Dropout, vertices: NDArray[np.int64], width: int) -> Doubles:
    """[n, width] what dropout multiplies these vertices' rows with: 0 or the scale; ones without dropout."""
    if dropout.threshold == 0:
        return np.ones((len(vertices), width))
    with np.errstate(over="ignore"):
        stream = _mix64(np.uint64(dropout.key) + (vertices.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        counters = np.arange(-(-width // 4), dtype=np.uint64) + np.uint64(1)
        bits = _mix64(stream[:, None] + counters * _GOLDEN)
    shifts = np.array([0, 16, 32, 48], np.uint64)
    draws = (bits[:, :, None] >> shifts & np.uint64(0xFFFF)).reshape(len(vertices), -1)[:, :width]
    return np.where(draws >= dropout.threshold, dropout.scale, 0.0)


def _mix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_A
    z = (z ^ (z >> np.uint64(27))) * _MIX_B
    return z ^ (z >> np.uint64(31))


def _aggregated(task: Task, first: int, count: int, rows: Doubles, num_to: int) -> Doubles:
    section = task.edges[first : first + count]
    out = np.zeros((num_to, rows.shape[1]))
    weights = np.ascontiguousarray(section[:, 2]).view(np.float32).astype(np.float64)
    np.add.at(out, section[:, 1], rows[section[:, 0]] * weights[:, None])
    return out


def _matrix(task: Task, r: LayerRecord) -> Doubles:
    """The weight matrix of a layer and, as the last row, its bias."""
    words = task.weights[r.weights * LANES : (r.weights + r.weight_words) * LANES]
    return words.reshape(r.depth + 1, r.out_chunks * LANES).astype(np.float64)


def _cross_entropy(
    scores: Doubles, labels: NDArray[np.int32], weights: NDArray[np.float32]
) -> tuple[Doubles, Doubles]:
    """Gradient of the sum of losses, and [that sum, hits]; argmax takes the first, NaN as largest."""
    at = np.arange(len(scores))
    shifted = scores - scores.max(1, keepdims=True)
    exponents = np.exp(shifted)
    total = exponents.sum(1, keepdims=True)
    grad = exponents / total
    grad[at, labels] -= 1
    losses = np.log(total[:, 0]) - shifted[at, labels]
    hits = np.count_nonzero(scores.argmax(1) == labels)
    return grad * weights[:, None], np.array([(losses * weights).sum(), hits])
