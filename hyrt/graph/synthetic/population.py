"""Vertices of a generated graph: classes, degree weights, features and splits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.csr import in_order
from hyrt.graph.formats.schema import FeatureRows
from hyrt.graph.synthetic import kernels
from hyrt.machine.cores import available_cores
from hyrt.quantities import one_line

Array = NDArray[Any]

_WEIGHT_SCALE = 64
_PIECE_VALUES = 1 << 21


@dataclass(frozen=True, slots=True)
class Population:
    """Vertices of one type (26 bytes each), from which edge endpoints can be sampled by weight."""

    labels: NDArray[np.int16]
    """[n] the class of each vertex."""
    order: NDArray[np.int32]
    """[n] the vertices sorted by class: position p is vertex `order[p]`."""
    cumulative: NDArray[np.int64]
    """[n+1] sum of the weights before each position."""
    class_start: NDArray[np.int64]
    """[C+1] the first position of each class."""
    shift: int
    """Number of bits by which a value of `cumulative` is shifted right to get its index in `guide`."""
    guide: NDArray[np.int32]
    """First position whose weight interval reaches each bucket; the starting point of a search in
    `cumulative`."""

    __repr__ = one_line

    @property
    def num_classes(self) -> int:
        return len(self.class_start) - 1


def draw_population(label_key: np.uint64, weight_key: np.uint64, count: int, classes: int) -> Population:
    """Sample the classes and weights of vertices.

    Parameters
    ----------
    label_key, weight_key
        Keys of the random streams.
    count
        Number of vertices.
    classes
        Number of classes. Class sizes fall as 1 / sqrt(rank), and each class has at least one vertex.
    """
    # The largest weight is the structural cut-off of simple graphs, about the square root of V.
    cap = float(max(4, math.isqrt(count)))
    shares = np.cumsum(1.0 / np.sqrt(np.arange(1, classes + 1)))
    shares /= shares[-1]
    labels, weights = np.empty(count, np.int16), np.empty(count, np.int64)
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
    # Guarantee that no class is empty.
    labels[:classes] = np.arange(classes)
    order = np.argsort(labels, kind="stable").astype(np.int32)
    cumulative = np.zeros(count + 1, np.int64)
    np.cumsum(weights[order], out=cumulative[1:])
    class_start = np.zeros(classes + 1, np.int64)
    np.cumsum(np.bincount(labels, minlength=classes), out=class_start[1:])
    total = int(cumulative[-1])
    shift = (total // (2 * count)).bit_length()
    guide = np.empty(((total - 1) >> shift) + 1, np.int32)
    kernels.fill_guide(cumulative, shift, guide)
    return Population(labels, order, cumulative, class_start, shift, guide)


def class_rows(
    labels: NDArray[np.int16],
    shape: tuple[int, int],
    signal: float,
    dtype: np.dtype[Any],
    keys: tuple[np.uint64, np.uint64],
) -> FeatureRows:
    """Generate feature rows around the mean of each vertex's class, computed lazily when they are read.

    Parameters
    ----------
    labels
        [n] the class of each vertex.
    shape
        (C, F): number of classes and row width.
    signal
        Standard deviation of the class means; the noise around them has standard deviation 1.
    dtype
        float32 or float16.
    keys
        Keys of the random streams of the means and of the noise.
    """
    mean_key, key = keys
    means = np.zeros(shape, np.float32)
    # A mean is sampled like the noise of one row, then scaled.
    kernels.draw_features(mean_key, np.arange(shape[0]), means.copy(), 0, means)
    means *= np.float32(signal)
    step = max(1, _PIECE_VALUES // shape[1])

    def piece(first: int) -> Array:
        part = labels[first : first + step]
        rows = np.empty((len(part), shape[1]), np.float32)
        kernels.draw_features(key, part, means, first, rows)
        return rows.astype(dtype, copy=False)

    def blocks() -> Iterator[Array]:
        with ThreadPoolExecutor(available_cores()) as pool:
            yield from in_order(pool, piece, range(0, len(labels), step), available_cores())

    return FeatureRows.streamed((len(labels), shape[1]), dtype, blocks)


def draw_masks(key: np.uint64, count: int, sizes: dict[str, int]) -> dict[str, Array]:
    """Sample disjoint random splits and return `train_mask`, `val_mask` and `test_mask`; `sizes` has the
    number of vertices of each split.
    """
    ranks = np.empty(count, np.uint64)
    kernels.draw_ranks(key, ranks)
    order = np.argsort(ranks, kind="stable")
    masks: dict[str, Array] = {}
    start = 0
    for split, size in sizes.items():
        mask = np.zeros(count, np.bool_)
        mask[order[start : start + size]] = True
        masks[f"{split}_mask"] = mask
        start += size
    return masks
