"""Degree distributions of graphs, from which expected mini-batch sizes are computed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degree_classes import DegreeClasses, Floats
from hyrt_perfmodel.sizes.overlap import NeighborOverlap

_ASSUMED_LEVELS = 400
_ASSUMED_PAIR_LEVELS = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DegreeMixing:
    """Edges between groups of degree classes: which degrees are neighbors.

    Raises
    ------
    ValueError
        If a table is not square, a group is out of range, or a row is not a distribution.
    """

    groups: NDArray[np.int64]
    """[C] int64, group of each class."""
    shares: Floats
    """[G, G] float64; entry (g, h) is the share of group g's outgoing edges that enter group h. Rows add up
    to 1."""
    target_shares: Floats | None = None
    """[G, G] float64; the portion of `shares` that enters possible targets. None if targets are like all
    vertices."""

    def __post_init__(self) -> None:
        size = len(self.shares)
        if self.shares.shape != (size, size) or size == 0:
            raise ValueError(f"mixing: shares has shape {self.shares.shape}: give a square table")
        if len(self.groups) and not 0 <= int(self.groups.min()) <= int(self.groups.max()) < size:
            raise ValueError(
                f"mixing: a group is outside 0..{size - 1}: number the groups as the rows of shares"
            )
        if self.shares.min() < 0 or not np.allclose(self.shares.sum(1), 1):
            raise ValueError("mixing: a row of shares is not a distribution: each row must add up to 1")
        target_shares = self.target_shares
        if target_shares is not None and (
            target_shares.shape != (size, size) or (target_shares > self.shares + 1e-9).any()
        ):
            raise ValueError("mixing: target_shares exceeds shares: no entry may be larger")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DegreeDistribution:
    """Classes of vertices with (nearly) equal in- and out-degree.

    Raises
    ------
    ValueError
        If the lengths of the arrays do not match, or they contain negative or infinite numbers.
    """

    counts: Floats
    """[C] float64, vertices per class."""
    in_degrees: Floats
    out_degrees: Floats
    """`in_degrees` and `out_degrees`: [C] float64, mean degrees per class."""
    num_vertices: int
    num_edges: int
    """`num_vertices` and `num_edges`: V and E (directed, as stored)."""
    source: str
    """Origin of the degrees: `counted`, or `assumed: ...` with the assumptions."""
    target_counts: Floats | None = None
    """[C] float64, possible targets per class; None for all vertices."""
    reciprocity: float = 1.0
    """Share of edges whose reverse is also an edge: 1 for symmetric graphs."""
    mixing: DegreeMixing | None = None
    """Which degrees are neighbors; None if edges do not depend on degree."""
    overlap: NeighborOverlap | None = None
    """Overlap of neighborhoods of neighbors; None if they overlap only by chance."""

    def __post_init__(self) -> None:
        for name in ("counts", "in_degrees", "out_degrees", "target_counts"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != self.counts.shape or values.ndim != 1:
                raise ValueError(f"degrees: {name} has shape {values.shape}: give one number per class")
            if not np.isfinite(values).all() or (len(values) and values.min() < 0):
                raise ValueError(f"degrees: {name} has a negative or infinite number")
        if not 0 <= self.reciprocity <= 1:
            raise ValueError(f"degrees: reciprocity is {self.reciprocity!r}: give a share between 0 and 1")
        if self.mixing is not None and len(self.mixing.groups) != len(self.counts):
            raise ValueError(
                f"degrees: mixing has groups for {len(self.mixing.groups)} classes, but there are "
                f"{len(self.counts)}"
            )

    @property
    def num_classes(self) -> int:
        """Number of degree classes."""
        return len(self.counts)

    @property
    def num_targets(self) -> float:
        """Number of possible targets."""
        return float((self.counts if self.target_counts is None else self.target_counts).sum())

    @classmethod
    def from_classes(
        cls,
        classes: DegreeClasses,
        *,
        targets: NDArray[Any] | None = None,
        reciprocity: float | None = None,
        mixing: DegreeMixing | None = None,
        overlap: NeighborOverlap | None = None,
    ) -> DegreeDistribution:
        """Compute the counts and mean degrees of classes.

        Parameters
        ----------
        classes
            Class of each vertex.
        targets
            [n] possible targets, or bool [V]; None for all vertices.
        reciprocity
            Share of edges whose reverse is an edge; None for 1 if in- and out-degrees are equal, otherwise 0.
        mixing, overlap
            Attributes of the result.
        """
        counts = classes.sums()
        in_degrees = classes.sums(classes.in_degrees) / counts
        return cls(
            counts=counts,
            in_degrees=in_degrees,
            out_degrees=in_degrees if classes.symmetric else classes.sums(classes.out_degrees) / counts,
            num_vertices=len(classes.of_vertex),
            num_edges=int(classes.in_degrees.sum(dtype=np.int64)),
            source="counted",
            target_counts=None
            if targets is None
            else np.bincount(classes.of_vertex[targets], minlength=classes.num_classes).astype(np.float64),
            reciprocity=float(classes.symmetric) if reciprocity is None else reciprocity,
            mixing=mixing,
            overlap=overlap,
        )

    @classmethod
    def assumed(
        cls,
        num_vertices: int,
        num_edges: int,
        *,
        sigma: float = 1.2,
        reciprocity: float = 1.0,
        num_targets: int | None = None,
    ) -> DegreeDistribution:
        """Assume log-normal degrees, for a graph of known size.

        The mean of log-normal degrees is exp(sigma^2 / 2) times the median: 2.05 times with sigma 1.2, which
        is close to co-purchase and citation graphs. In- and out-degrees are equal in a symmetric graph
        (`reciprocity` 1) and independent otherwise. Targets are assumed to be like all vertices.

        Parameters
        ----------
        num_vertices, num_edges
            V and E (directed, as stored).
        sigma
            Standard deviation of the degrees' logarithm.
        reciprocity
            Share of edges whose reverse is also an edge.
        num_targets
            Possible targets; None for all vertices.

        Raises
        ------
        ValueError
            If a size is below 1 or `sigma` is negative.
        """
        if num_vertices < 1 or num_edges < 0:
            raise ValueError(
                f"degrees: {num_vertices} vertices and {num_edges} edges: give at least 1 vertex and 0 edges"
            )
        if not sigma >= 0:
            raise ValueError(
                f"degrees: sigma is {sigma!r}: give the standard deviation of the logarithm of the "
                "degrees, at least 0"
            )
        symmetric = reciprocity == 1
        degrees, shares = _log_normal(
            num_vertices,
            num_edges / num_vertices,
            sigma,
            num_vertices - 1,
            _ASSUMED_LEVELS if symmetric else _ASSUMED_PAIR_LEVELS,
        )
        ins, outs = degrees, degrees
        if not symmetric:
            ins, outs = (grid.ravel() for grid in np.meshgrid(degrees, degrees))
            shares = np.outer(shares, shares).ravel()
        counts = shares * num_vertices
        return cls(
            counts=counts,
            in_degrees=ins,
            out_degrees=outs,
            num_vertices=num_vertices,
            num_edges=num_edges,
            source=f"assumed: log-normal degrees, sigma {sigma:g}",
            target_counts=None if num_targets is None else counts * (num_targets / num_vertices),
            reciprocity=reciprocity,
        )


def _log_normal(
    num_vertices: int, mean: float, sigma: float, largest: float, levels: int
) -> tuple[Floats, Floats]:
    """Return degrees and shares of classes with mean degree `mean`; classes are finer for large degrees."""
    if mean == 0:
        return np.zeros(1), np.ones(1)
    # Share of vertices above the start of each class, decreasing geometrically to one vertex.
    above = np.geomspace(1.0, 1.0 / num_vertices, levels)
    shares = np.append(-np.diff(above), above[-1])
    middles = above - shares / 2
    normal = NormalDist()
    degrees = np.exp(sigma * np.array([-normal.inv_cdf(p) if 0 < p < 1 else 0.0 for p in middles.tolist()]))
    for _ in range(50):
        degrees = np.minimum(degrees * (mean / float(degrees @ shares)), largest)
    return degrees, shares
