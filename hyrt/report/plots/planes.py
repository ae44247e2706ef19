"""Two-dimensional projections of embeddings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError
from hyrt.quantities import one_line

Array = NDArray[Any]

# UMAP's default.
_NUM_NEIGHBOURS = 15


@dataclass(frozen=True, slots=True)
class Plane:
    """Two-dimensional projection of rows."""

    places: NDArray[np.float64]
    """[n, 2] projected positions."""
    axes: tuple[str, str]
    """Descriptions of the two axes."""

    __repr__ = one_line


def principal_plane(rows: Array) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Project rows on their two principal components (principal component analysis; Pearson, 1901).

    Parameters
    ----------
    rows
        [n, width] numbers.

    Returns
    -------
    Positions, [n, 2] float64, and the fractions of the variance along both axes. The sign of an axis makes
    its
    component with the largest weight positive. For a single column, the second axis is zero.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    first = axes[:, ::-1][:, :2]
    first = first * np.sign(first[np.abs(first).argmax(0), np.arange(first.shape[1])])
    positions = np.zeros((len(rows), 2))
    positions[:, : first.shape[1]] = centred @ first
    total = variances.sum()
    variance_fractions = [*(variances[::-1] / total if total > 0 else np.zeros_like(variances)), 0.0]
    return positions, (float(variance_fractions[0]), float(variance_fractions[1]))


def by_principal_components(rows: Array) -> Plane:
    """Project rows [n, width] on their principal components, with axis descriptions."""
    positions, parts = principal_plane(rows)
    first, second = (f"component {axis}, {part:.0%} of the variance" for axis, part in enumerate(parts, 1))
    return Plane(positions, (first, second))


def check_umap() -> None:
    """Check that UMAP is installed, before anything is computed.

    Raises
    ------
    ConfigError
        If UMAP is not installed.
    """
    # Check the distribution: another package has the same module name, and importing UMAP compiles for
    # seconds.
    try:
        distribution("umap-learn")
    except PackageNotFoundError:
        raise ConfigError('--method umap needs umap-learn: pip install "hyrt[umap]"') from None


def by_umap(rows: Array, seed: int) -> Plane:
    """Project rows with UMAP, which preserves neighbourhoods (McInnes, Healy and Melville, 2018).

    Parameters
    ----------
    rows
        [n, width] numbers, with n greater than the 15 neighbours used per row.
    seed
        Seed of the projection; equal seeds give equal positions.

    Raises
    ------
    ConfigError
        If there are too few rows.
    """
    if len(rows) <= _NUM_NEIGHBOURS:
        raise ConfigError(
            f"--method umap places each vertex by its {_NUM_NEIGHBOURS} nearest neighbours, but there are "
            f"only {len(rows)} vertices: use --method pca"
        )
    from umap import UMAP

    with warnings.catch_warnings():
        # Users cannot fix what UMAP warns about.
        warnings.simplefilter("ignore")
        # With a seed, UMAP always uses one thread.
        positions = UMAP(n_neighbors=_NUM_NEIGHBOURS, random_state=seed % 2**32, n_jobs=1).fit_transform(rows)
    return Plane(np.asarray(positions, np.float64), ("UMAP 1", "UMAP 2"))
