"""Rows of many numbers laid out on a plane, so that they can be drawn."""

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

# UMAP's own default.
_NEIGHBOURS = 15


@dataclass(frozen=True, slots=True)
class Plane:
    """Where rows are on a plane."""

    places: NDArray[np.float64]
    """[n, 2]."""
    axes: tuple[str, str]
    """What its two axes are, in words."""

    __repr__ = one_line


def principal_plane(rows: Array) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Rows on the plane along which they differ most: principal component analysis (Pearson, 1901).

    Parameters
    ----------
    rows
        [n, width] numbers.

    Returns
    -------
    [n, 2] float64 places, of which the component of an axis with the largest weight is positive, and the
    parts of the variance along both axes. Of a single column the second is zero.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    first = axes[:, ::-1][:, :2]
    first = first * np.sign(first[np.abs(first).argmax(0), np.arange(first.shape[1])])
    places = np.zeros((len(rows), 2))
    places[:, : first.shape[1]] = centred @ first
    total = variances.sum()
    parts = [*(variances[::-1] / total if total > 0 else np.zeros_like(variances)), 0.0]
    return places, (float(parts[0]), float(parts[1]))


def by_principal_components(rows: Array) -> Plane:
    """The principal plane of [n, width] rows."""
    places, parts = principal_plane(rows)
    first, second = (f"component {axis}, {part:.0%} of the variance" for axis, part in enumerate(parts, 1))
    return Plane(places, (first, second))


def check_umap() -> None:
    """Before anything is computed: whether UMAP is installed.

    Raises
    ------
    ConfigError
        If it is not.
    """
    # Not by the module's name, which another package has too; and importing it compiles for seconds.
    try:
        distribution("umap-learn")
    except PackageNotFoundError:
        raise ConfigError('--method umap needs umap-learn: pip install "hyrt[umap]"') from None


def by_umap(rows: Array, seed: int) -> Plane:
    """Rows where their nearest neighbours stay near: UMAP (McInnes, Healy and Melville, 2018).

    Parameters
    ----------
    rows
        [n, width] numbers, more rows than the 15 neighbours that each is laid out by.
    seed
        What equal places come from.

    Raises
    ------
    ConfigError
        If there are too few rows.
    """
    if len(rows) <= _NEIGHBOURS:
        raise ConfigError(
            f"--method umap places each vertex by its {_NEIGHBOURS} nearest neighbours, but there are only "
            f"{len(rows)} vertices: use --method pca"
        )
    from umap import UMAP

    with warnings.catch_warnings():
        # Of details of its start that nobody can mend.
        warnings.simplefilter("ignore")
        # With a seed it uses one thread whatever it is told.
        places = UMAP(n_neighbors=_NEIGHBOURS, random_state=seed % 2**32, n_jobs=1).fit_transform(rows)
    return Plane(np.asarray(places, np.float64), ("UMAP 1", "UMAP 2"))
