"""Overlap of the neighborhoods of neighbors, which degrees alone do not determine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degree_classes import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OverlapSample:
    """Paths u -> w -> z of a symmetric graph, followed by sampling from z to a neighbor w, then to u.

    Raises
    ------
    ValueError
        If the arrays differ in length, or a count of paths is negative.
    """

    first_degrees: Floats
    second_degrees: Floats
    """`first_degrees` and `second_degrees`: [n] float64, in-degrees of z and of w."""
    others: Floats
    other_degrees: Floats
    """`others` and `other_degrees`: [n] float64, number of further two-edge paths from this u to this z, and
    the harmonic mean of the in-degrees of their middle vertices (arbitrary if there are no paths)."""
    direct: NDArray[np.bool_]
    """[n] bool, whether u is also an in-neighbor of z."""
    chance_others: Floats
    chance_degrees: Floats
    chance_direct: NDArray[np.bool_]
    """`chance_others`, `chance_degrees` and `chance_direct`: [n], the same three values for z and the u of
    another path: the overlap without clustering."""
    eligible: Floats
    """[n] float64, number of u's out-neighbors that may be targets; 0 if z cannot be a target."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__slots__}
        if len(lengths) != 1:
            raise ValueError(f"overlap: arrays of lengths {sorted(lengths)}: give one entry per path")
        if len(self.others) and min(self.others.min(), self.chance_others.min()) < 0:
            raise ValueError("overlap: a number of further paths is negative")

    def distinct(self, first: int, second: int, repeats: tuple[int, ...], drawn: float) -> float:
        """Return the share of two-edge paths that reach an otherwise unreached vertex, relative to chance.

        Parameters
        ----------
        first, second
            Fan-outs of z and of w; -1 for all neighbors.
        repeats
            Fan-outs of further layers in which z samples, whose samples are reached without a two-edge path.
        drawn
            Probability that a possible target is a target, since other targets may also have reached u.

        Returns
        -------
        In 0..1; 1 for a graph in which paths meet no more often than by chance, or if there are no paths.
        """
        first_share = _share(first, self.first_degrees)
        pick = first_share * _share(second, self.second_degrees)
        not_sampled = 1.0 - first_share
        for fanout in repeats:
            not_sampled = not_sampled * (1.0 - _share(fanout, self.first_degrees))
        weights = self.first_degrees * (self.second_degrees - 1.0) * pick
        if not weights.any():
            return 1.0
        missed = 1.0 - drawn * (1.0 - not_sampled)
        absent = np.exp(self.eligible * np.log(np.maximum(missed, 1e-12)))
        only_path = np.where(self.direct & (self.eligible > 0), absent / np.maximum(missed, 1e-12), absent)
        other = first_share * _share(second, self.other_degrees)
        reached = weights @ (
            _reached_per_pair(pick, self.others, other) * np.where(self.direct, not_sampled, 1.0) * only_path
        )
        other = first_share * _share(second, self.chance_degrees)
        reached_by_chance = _reached_per_pair(pick, self.chance_others, other) * np.where(
            self.chance_direct, not_sampled, 1.0
        )
        chance = weights @ (reached_by_chance * absent)
        return min(float(reached) / float(chance), 1.0) if chance > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighborOverlap:
    """Overlap around targets, and around vertices reached over edges."""

    near: OverlapSample
    """Paths whose z is distributed like the targets."""
    far: OverlapSample
    """Paths whose z is distributed like reached vertices: in proportion to their edges."""


def _reached_per_pair(pick: Floats, others: Floats, other: Floats) -> Floats:
    """Return the vertices reached per pair of paths: one with chance `pick`, `others` with chance `other`."""
    missed = np.exp(others * np.log1p(-np.minimum(other, 1.0 - 1e-12)))
    reached: Floats = (1.0 - (1.0 - pick) * missed) / (pick + others * other)
    return reached


def _share(fanout: int, degrees: Floats) -> Floats:
    """Return the fraction of its neighbors that a vertex samples."""
    if fanout < 0:
        return np.ones_like(degrees)
    return np.minimum(fanout / np.maximum(degrees, 1.0), 1.0)
