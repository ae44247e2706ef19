"""Seeded tasks, built with NumPy alone, that every implementation of a task is compared on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hyrt_hls.task_layout import Dropout, LayerRecord, Task, TaskHeader, encode_task, row_base
from hyrt_perfmodel.fpga_design import LANES, num_chunks

GOLDEN_PES = 4
GOLDEN_ARENA = 4096


def golden_tasks(pes: int = GOLDEN_PES) -> Iterator[tuple[str, Task]]:
    """Named tasks for a design of `pes` banks of GOLDEN_ARENA words."""
    for name, arguments in _GOLDEN.items():
        yield name, random_task(**arguments, pes=pes)


_GOLDEN: dict[str, dict[str, Any]] = {
    "one layer": {"seed": 1, "widths": [5, 3]},
    "two layers": {"seed": 2, "widths": [40, 24, 7]},
    "concatenated": {"seed": 3, "widths": [20, 33, 5], "parts": [2, 2]},
    "mixed parts": {"seed": 4, "widths": [16, 16, 16, 4], "parts": [1, 2, 1]},
    "dropout": {"seed": 5, "widths": [37, 20, 6], "rates": [0.3, 0.5, 0.0]},
    "dropout without relu": {
        "seed": 6,
        "widths": [18, 20, 6],
        "rates": [0.0, 0.4, 0.2],
        "relu": [False, True],
    },
    "no edges": {"seed": 7, "widths": [9, 8, 3], "density": 0.0},
    "one edge": {"seed": 8, "widths": [9, 8, 3], "counts": [3, 2, 1], "density": 0.0, "extra": 1},
    "hub": {"seed": 9, "widths": [30, 17, 3], "counts": [20, 12, 9], "density": 1.0},
    "many chunks": {"seed": 10, "widths": [150, 70, 20], "counts": [25, 11, 6]},
}


def random_task(
    seed: int,
    *,
    widths: Sequence[int],
    counts: Sequence[int] = (),
    parts: Sequence[int] = (),
    relu: Sequence[bool] = (),
    rates: Sequence[float] = (),
    density: float = 0.2,
    extra: int = 0,
    weighted: bool = True,
    pes: int = GOLDEN_PES,
    arena_words: int = GOLDEN_ARENA,
) -> Task:
    """A task with random sparse layers.

    Parameters
    ----------
    widths
        [layers + 1] of the rows of V^0 to the classes.
    counts
        [layers + 1] vertices of V^0 .. V^L, falling.
    parts, relu
        [layers]; one part, and ReLU in all layers but the last, unless given.
    rates
        [layers + 1] dropout of the input and of each layer's output.
    density
        Of the random part of the aggregation; destinations without any edge occur.
        With two parts the first one always has the destination's own row.
    extra
        That many edges more in each layer.
    weighted
        Whether targets have weights other than 1.
    """
    rng = np.random.default_rng(seed)
    layers = len(widths) - 1
    counts = counts or sorted(rng.integers(2, 30, layers + 1).tolist(), reverse=True)
    parts = parts or [1] * layers
    relu = relu or [i < layers - 1 for i in range(layers)]
    rates = rates or [0.0] * (layers + 1)
    dropouts = [
        Dropout(round(rate * 65536), 65536 / (65536 - round(rate * 65536)), int(rng.integers(0, 2**63)))
        for rate in rates
    ]

    sections: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    records: list[LayerRecord] = []
    sums, rows = 0, row_base(arena_words)
    for i in range(layers):
        matrix = _edges(rng, counts[i], counts[i + 1], parts[i], density, extra)
        forward = _sorted_edges(matrix.T)
        backward = _sorted_edges(matrix) if i else forward[:0]
        first = sum(map(len, sections))
        sections += [forward, backward]
        in_chunks, out_chunks = num_chunks(widths[i]), num_chunks(widths[i + 1])
        at = sum(map(len, weights))
        weights.append(_weights(rng, widths[i], widths[i + 1], parts[i]))
        combined = -(-counts[i + 1] * parts[i] // pes) * in_chunks
        outputs = -(-counts[i + 1] // pes) * out_chunks
        records.append(
            LayerRecord(
                rows=counts[i + 1],
                parts=parts[i],
                num_src=counts[i],
                in_chunks=in_chunks,
                out_chunks=out_chunks,
                relu=relu[i],
                first_edge=first,
                num_edges=len(forward),
                first_backward_edge=first + len(forward),
                num_backward_edges=len(backward),
                weights=at // LANES,
                combined=sums,
                output=rows,
                output_gradient=sums + combined,
                combined_gradient=rows + outputs if i else -1,
                out_width=widths[i + 1],
                in_width=widths[i],
                dropout=dropouts[i + 1],
            )
        )
        sums += combined + outputs
        rows += outputs + (combined if i else 0)

    header = TaskHeader(
        layers=layers,
        targets=counts[-1],
        classes=widths[-1],
        num_sources=counts[0],
        in_chunks=num_chunks(widths[0]),
        in_width=widths[0],
        dropout=dropouts[0],
    )
    features = np.zeros((counts[0], num_chunks(widths[0]) * LANES), np.float32)
    features[:, : widths[0]] = rng.standard_normal((counts[0], widths[0]))
    target_weights = rng.random(counts[-1]) + 0.5 if weighted else np.ones(counts[-1])
    return Task(
        features=features,
        edges=np.concatenate(sections),
        weights=np.concatenate(weights),
        labels=rng.integers(0, widths[-1], counts[-1], dtype=np.int32),
        target_weights=target_weights.astype(np.float32),
        vertices=rng.choice(10**12, counts[0], replace=False).astype(np.int64),
        task=encode_task(header, records),
    )


def _edges(
    rng: np.random.Generator, num_src: int, rows: int, parts: int, density: float, extra: int
) -> np.ndarray:
    """[rows * parts, num_src] weights of the edges, zero where there is none."""
    neighbours = rng.standard_normal((rows, num_src)) * (rng.random((rows, num_src)) < density)
    for _ in range(extra):
        neighbours[rng.integers(rows), rng.integers(num_src)] = rng.standard_normal() + 3
    if parts == 1:
        return neighbours
    return np.stack([np.eye(rows, num_src), neighbours], 1).reshape(rows * 2, num_src)


def _sorted_edges(matrix: np.ndarray) -> np.ndarray:
    """The elements of [from, to] as edges, by from and then to."""
    start, end = np.nonzero(matrix)
    edges = np.zeros((len(start), 4), np.int32)
    edges[:, 0], edges[:, 1] = start, end
    edges[:, 2] = matrix[start, end].astype(np.float32).view(np.int32)
    return edges


def _weights(rng: np.random.Generator, in_width: int, out_width: int, parts: int) -> np.ndarray:
    """Weight and bias of a layer, padded, flat."""
    in_lanes, out_lanes = num_chunks(in_width) * LANES, num_chunks(out_width) * LANES
    padded = np.zeros((parts * in_lanes + 1, out_lanes), np.float32)
    for part in range(parts):
        padded[part * in_lanes :][:in_width, :out_width] = (
            rng.standard_normal((in_width, out_width)) / in_width**0.5
        )
    padded[-1, :out_width] = rng.standard_normal(out_width)
    return padded.ravel()
