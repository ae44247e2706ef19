"""Sizes of mini-batches between those that were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.expected_sizes import BlockSizes

# Instead of the logarithm of 0: of a layer without edges.
_NONE = 1e-9


class SizeCurves:
    """Several sizes at some numbers of targets, interpolated between them.

    Logarithms of the sizes are monotone cubics in the logarithm of the targets (Fritsch and Butland, "A
    method for constructing local monotone piecewise cubic interpolants", SIAM Journal on Scientific and
    Statistical Computing 5, 1984): they follow the bend of sizes that saturate, and nowhere fall. Below the
    smallest they are in proportion to the targets, as small mini-batches do not overlap; above the largest
    they grow as between the last two, at most in proportion.

    Parameters
    ----------
    measured
        The sizes, equally many each time, by number of targets, above 0.

    Raises
    ------
    ValueError
        If nothing was measured, or a number of targets is not above 0.
    """

    def __init__(self, measured: Mapping[float, Sequence[float]]) -> None:
        if not measured:
            raise ValueError("sampled sizes: nothing was measured: sample at least one mini-batch")
        if not min(measured) > 0:
            raise ValueError(f"sampled sizes: {min(measured)!r} targets: give numbers above 0")
        targets = sorted(measured)
        rows = [measured[count] for count in targets]
        table = np.maximum.accumulate(np.array(rows, np.float64), axis=0)
        self._targets = np.log(np.array(targets, np.float64))
        self._sizes = np.log(np.maximum(table, _NONE))
        self._slopes = _slopes(self._targets, self._sizes)

    def at(self, targets: float) -> list[float]:
        """The sizes with that many targets, at least 0.

        Raises
        ------
        ValueError
            If `targets` is negative.
        """
        if not targets >= 0:
            raise ValueError(f"sampled sizes: targets is {targets!r}: give a number of at least 0")
        sizes = np.zeros(self._sizes.shape[1])
        if targets > 0:
            sizes = np.exp(self._logarithms(float(np.log(targets))))
            sizes[sizes <= 2 * _NONE] = 0.0
        found: list[float] = sizes.tolist()
        return found

    def _logarithms(self, targets: float) -> NDArray[np.float64]:
        known = self._targets
        right = int(np.searchsorted(known, targets))
        if right == 0 or len(known) == 1:
            in_proportion: NDArray[np.float64] = self._sizes[0] + (targets - known[0])
            return in_proportion
        if right == len(known):
            # Never faster than the targets: what looks so between two measurements is their noise.
            slopes = np.minimum(self._slopes[-1], 1.0)
            beyond: NDArray[np.float64] = self._sizes[-1] + slopes * (targets - known[-1])
            return beyond
        width = known[right] - known[right - 1]
        t = (targets - known[right - 1]) / width
        rise = self._sizes[right] - self._sizes[right - 1]
        first, last = self._slopes[right - 1] * width, self._slopes[right] * width
        grown: NDArray[np.float64] = self._sizes[right - 1] + t * (
            first + t * (3 * rise - 2 * first - last + t * (first + last - 2 * rise))
        )
        return grown


class SampledSizes:
    """Measured sizes of blocks at some numbers of targets, interpolated between them as `SizeCurves` are.

    Parameters
    ----------
    measured
        Mean sizes by number of targets, above 0.

    Raises
    ------
    ValueError
        If nothing was measured, a number of targets is not above 0, or the numbers of layers differ.
    """

    def __init__(self, measured: Mapping[float, BlockSizes]) -> None:
        layers = {len(sizes.edges) for sizes in measured.values()}
        if len(layers) > 1:
            raise ValueError(
                f"sampled sizes: numbers of layers {sorted(layers)}: give mini-batches of one model"
            )
        self._curves = SizeCurves({count: sizes.row for count, sizes in measured.items()})

    def at(self, targets: float) -> BlockSizes:
        """Sizes of a mini-batch with that many targets, at least 0.

        Raises
        ------
        ValueError
            If `targets` is negative.
        """
        return BlockSizes.of_row(self._curves.at(targets))


def _slopes(known: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, sizes] slopes at the n known positions, none so steep that the cubics overshoot."""
    if len(known) == 1:
        return np.ones_like(sizes)
    between = np.diff(sizes, axis=0) / np.diff(known)[:, None]
    inside = 2 * between[1:] * between[:-1] / np.maximum(between[1:] + between[:-1], 1e-300)
    return np.concatenate([between[:1], inside, between[-1:]])
