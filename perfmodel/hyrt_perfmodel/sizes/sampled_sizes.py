"""Interpolation between the sizes of sampled mini-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.expected_sizes import BlockSizes

# Replaces zero sizes (layers without edges), whose logarithm is undefined.
_ZERO = 1e-9


class SizeCurves:
    """Sizes at some numbers of targets, interpolated between them.

    The logarithms of the sizes are monotone cubics in the logarithm of the targets (Fritsch and Butland, "A
    method for constructing local monotone piecewise cubic interpolants", SIAM Journal on Scientific and
    Statistical Computing 5, 1984): they follow the bend of saturating sizes and never decrease. Below the
    smallest number of targets, sizes are proportional to the targets, since small mini-batches do not
    overlap; above the largest, they continue with the last slope, at most in proportion to the targets.

    Parameters
    ----------
    measured
        Sizes by number of targets (above 0), each sequence of the same length.

    Raises
    ------
    ValueError
        If `measured` is empty, or a number of targets is not above 0.
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
        self._sizes = np.log(np.maximum(table, _ZERO))
        self._slopes = _slopes(self._targets, self._sizes)

    def at(self, targets: float) -> list[float]:
        """Return the sizes for a number of targets, at least 0.

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
            sizes[sizes <= 2 * _ZERO] = 0.0
        values: list[float] = sizes.tolist()
        return values

    def _logarithms(self, targets: float) -> NDArray[np.float64]:
        positions = self._targets
        right = int(np.searchsorted(positions, targets))
        if right == 0 or len(positions) == 1:
            proportional: NDArray[np.float64] = self._sizes[0] + (targets - positions[0])
            return proportional
        if right == len(positions):
            # At most in proportion to the targets: a steeper slope between two measurements is noise.
            slopes = np.minimum(self._slopes[-1], 1.0)
            extrapolated: NDArray[np.float64] = self._sizes[-1] + slopes * (targets - positions[-1])
            return extrapolated
        width = positions[right] - positions[right - 1]
        t = (targets - positions[right - 1]) / width
        rise = self._sizes[right] - self._sizes[right - 1]
        first, last = self._slopes[right - 1] * width, self._slopes[right] * width
        interpolated: NDArray[np.float64] = self._sizes[right - 1] + t * (
            first + t * (3 * rise - 2 * first - last + t * (first + last - 2 * rise))
        )
        return interpolated


class SampledSizes:
    """Measured block sizes at some numbers of targets, interpolated with `SizeCurves`.

    Parameters
    ----------
    measured
        Mean sizes by number of targets, above 0.

    Raises
    ------
    ValueError
        If `measured` is empty, a number of targets is not above 0, or the numbers of layers differ.
    """

    def __init__(self, measured: Mapping[float, BlockSizes]) -> None:
        layers = {len(sizes.edges) for sizes in measured.values()}
        if len(layers) > 1:
            raise ValueError(
                f"sampled sizes: numbers of layers {sorted(layers)}: give mini-batches of one model"
            )
        self._curves = SizeCurves({count: sizes.row for count, sizes in measured.items()})

    def at(self, targets: float) -> BlockSizes:
        """Return the sizes of a mini-batch with a number of targets, at least 0.

        Raises
        ------
        ValueError
            If `targets` is negative.
        """
        return BlockSizes.of_row(self._curves.at(targets))


def _slopes(positions: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [n, sizes] slopes at the n known positions, limited so that the cubics do not overshoot."""
    if len(positions) == 1:
        return np.ones_like(sizes)
    secants = np.diff(sizes, axis=0) / np.diff(positions)[:, None]
    inside = 2 * secants[1:] * secants[:-1] / np.maximum(secants[1:] + secants[:-1], 1e-300)
    return np.concatenate([secants[:1], inside, secants[-1:]])
