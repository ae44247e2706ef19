"""The degree-corrected planted partition model with power-law weights, and features around class means.

Karrer and Newman, "Stochastic blockmodels and community structure in networks", Physical Review E 83, 2011.

Every random number is a pure function of (seed, purpose, counter), so the graph does not depend on threads,
on the piece of it that is computed, or on whether it is built in memory or written to a folder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import Store, build_csr, drop_edges, in_order
from hyrt.graph.formats.schema import Dataset, FeatureRows
from hyrt.graph.synthetic import kernels
from hyrt.graph.synthetic.spec import SyntheticSpec
from hyrt.machine.cores import available_cores
from hyrt.machine.generator import stream_key

Array = NDArray[Any]

# Purposes of the generator's keys, apart from those of training.
LABEL, WEIGHT, EDGE, PLACE, FEATURE, MEAN, SPLIT, DROP = range(101, 109)

_WEIGHT_SCALE = 64
_PIECE_EDGES = 1 << 20
_PIECE_VALUES = 1 << 21
_SAMPLED_EDGES = 1 << 17


@dataclass(frozen=True, slots=True)
class _Model:
    """Everything about the vertices: 26 bytes each."""

    spec: SyntheticSpec
    labels: NDArray[np.int16]
    order: NDArray[np.int32]
    cumulative: NDArray[np.int64]
    class_start: NDArray[np.int64]
    shift: int
    guide: NDArray[np.int32]

    def key(self, purpose: int) -> np.uint64:
        return stream_key(self.spec.seed, purpose, 0, 0)


def generate(spec: SyntheticSpec, scratch: Path | None = None) -> Dataset:
    """Generate a graph; features are computed when they are read.

    Parameters
    ----------
    spec
        The graph to generate.
    scratch
        A folder for the edges: memory is then bounded by about 80 bytes a vertex plus 1.1 GB. None keeps them
        in memory. The graph is the same.

    Returns
    -------
    A dataset that satisfies every check: symmetric, sorted, without duplicates and self loops.

    Raises
    ------
    DataError
        If so many edges cannot be placed without duplicates.
    """
    model = _draw_model(spec)
    indptr, indices = _draw_topology(model, scratch)
    arrays: dict[str, Array] = {"indptr": indptr, "indices": indices, "labels": model.labels}
    arrays |= _draw_masks(model)
    return Dataset(spec.name, arrays, _feature_rows(model))


def _draw_model(spec: SyntheticSpec) -> _Model:
    count = spec.vertices
    # The largest weight is the structural cut-off of simple graphs, about the square root of V.
    cap = float(max(4, math.isqrt(count)))
    shares = np.cumsum(1.0 / np.sqrt(np.arange(1, spec.classes + 1)))
    shares /= shares[-1]
    labels, weights = np.empty(count, np.int16), np.empty(count, np.int64)
    label_key, weight_key = (stream_key(spec.seed, purpose, 0, 0) for purpose in (LABEL, WEIGHT))
    with ThreadPoolExecutor(available_cores()) as pool:
        jobs = [
            pool.submit(
                kernels.draw_vertices, label_key, weight_key, shares, cap, _WEIGHT_SCALE, a,
                labels[a : a + _PIECE_VALUES], weights[a : a + _PIECE_VALUES],
            )
            for a in range(0, count, _PIECE_VALUES)
        ]  # fmt: skip
        for job in jobs:
            job.result()
    # Every class occurs.
    labels[: spec.classes] = np.arange(spec.classes)
    order = np.argsort(labels, kind="stable").astype(np.int32)
    cumulative = np.zeros(count + 1, np.int64)
    np.cumsum(weights[order], out=cumulative[1:])
    class_start = np.zeros(spec.classes + 1, np.int64)
    np.cumsum(np.bincount(labels, minlength=spec.classes), out=class_start[1:])
    total = int(cumulative[-1])
    shift = (total // (2 * count)).bit_length()
    guide = np.empty(((total - 1) >> shift) + 1, np.int32)
    kernels.fill_guide(cumulative, shift, guide)
    return _Model(spec, labels, order, cumulative, class_start, shift, guide)


def _draw_topology(model: _Model, scratch: Path | None) -> tuple[NDArray[np.int64], Array]:
    """Draw some more edges than asked for, as duplicates fall away, then leave out the excess."""
    spec = model.spec
    wanted = spec.edges // 2
    draws = _draws_needed(model, wanted)
    dtype = np.dtype(np.int32)
    while True:
        drawn = Store(dtype, scratch and scratch / "drawn.npy")
        indptr = build_csr(
            partial(_edge_pieces, model, draws),
            spec.vertices,
            symmetric=True,
            emit=drawn.append,
            source=spec.name,
            range_entries=drawn.range_entries,
        )
        excess = int(indptr[-1]) // 2 - wanted
        indices = drawn.finish()
        if excess >= 0:
            break
        draws += draws // 50 + 16
    kept = Store(dtype, scratch and scratch / "indices.npy")
    indptr = drop_edges(indptr, indices, excess, int(model.key(DROP)), kept.append)
    return indptr, kept.finish()


def _draws_needed(model: _Model, wanted: int) -> int:
    """Draws that give a little more than `wanted` distinct edges, judged from the odds of a sample of them.

    Raises
    ------
    DataError
        If that many cannot be had.
    """
    if wanted == 0:
        return 0
    spec = model.spec
    pieces = list(_edge_pieces(model, _SAMPLED_EDGES))
    u, v = (np.concatenate(ends) for ends in zip(*pieces, strict=True))
    weights = np.empty(spec.vertices, np.int64)
    weights[model.order] = np.diff(model.cumulative)
    total = float(model.cumulative[-1])
    of_class = np.diff(model.cumulative[model.class_start]).astype(np.float64)
    labels = model.labels
    second = (1 - spec.homophily) / total + spec.homophily * (labels[u] == labels[v]) / of_class[labels[v]]
    odds = 2.0 * weights[u] / total * weights[v] * second
    target = wanted * 1.002 + 5 * math.sqrt(wanted) + 16
    draws = target
    for _ in range(60):
        expected = draws * odds
        distinct = draws * float(np.where(u == v, 0.0, -np.expm1(-expected) / expected).mean())
        draws *= target / distinct
        if draws > 20 * target:
            raise DataError(
                f"{spec.name}: edges={spec.edges:,} are too many for {spec.vertices:,} vertices with "
                "such unequal degrees: lower edges or homophily, or raise vertices"
            )
    # Rounded up coarsely: the last bits of exp differ between machines and must not matter.
    grain = max(1, wanted >> 12)
    return (int(draws) // grain + 1) * grain


def _edge_pieces(model: _Model, draws: int) -> Iterator[tuple[Array, Array]]:
    """The drawn edges, about a million at a time."""
    cumulative = model.cumulative
    if draws == 0:
        return
    ratio = draws / float(cumulative[-1])
    step = max(1, int(_PIECE_EDGES / ratio))
    cuts = np.unique(np.searchsorted(cumulative, np.arange(0, int(cumulative[-1]) + step, step)))
    cuts = cuts.clip(0, model.spec.vertices)
    class_at = model.labels[model.order]
    edge_key, place_key = model.key(EDGE), model.key(PLACE)

    def draw(ends: tuple[int, int]) -> tuple[Array, Array]:
        first, last = ends
        count = int(float(cumulative[last]) * ratio) - int(float(cumulative[first]) * ratio)
        sources, targets = np.empty(count, np.int32), np.empty(count, np.int32)
        kernels.draw_edges(
            first, last, ratio, cumulative, model.shift, model.guide, model.order, model.class_start,
            class_at, model.spec.homophily, edge_key, place_key, sources, targets,
        )  # fmt: skip
        return sources, targets

    with ThreadPoolExecutor(available_cores()) as pool:
        yield from in_order(pool, draw, itertools.pairwise(cuts.tolist()), available_cores())


def _draw_masks(model: _Model) -> dict[str, Array]:
    spec = model.spec
    ranks = np.empty(spec.vertices, np.uint64)
    kernels.draw_ranks(model.key(SPLIT), ranks)
    order = np.argsort(ranks, kind="stable")
    masks: dict[str, Array] = {}
    start = 0
    for split, count in (("train", spec.train), ("val", spec.val), ("test", spec.test)):
        mask = np.zeros(spec.vertices, np.bool_)
        mask[order[start : start + count]] = True
        masks[f"{split}_mask"] = mask
        start += count
    return masks


def _feature_rows(model: _Model) -> FeatureRows:
    spec = model.spec
    means = np.zeros((spec.classes, spec.features), np.float32)
    # A mean is drawn as the noise of a row of its own, then scaled.
    kernels.draw_features(model.key(MEAN), np.arange(spec.classes), means.copy(), 0, means)
    means *= np.float32(spec.signal)
    dtype = np.dtype(spec.dtype)
    step = max(1, _PIECE_VALUES // spec.features)
    key, labels = model.key(FEATURE), model.labels

    def piece(first: int) -> Array:
        part = labels[first : first + step]
        rows = np.empty((len(part), spec.features), np.float32)
        kernels.draw_features(key, part, means, first, rows)
        return rows.astype(dtype, copy=False)

    def blocks() -> Iterator[Array]:
        with ThreadPoolExecutor(available_cores()) as pool:
            yield from in_order(pool, piece, range(0, spec.vertices, step), available_cores())

    return FeatureRows.streamed((spec.vertices, spec.features), dtype, blocks)
