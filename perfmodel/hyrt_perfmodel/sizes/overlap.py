"""How far the neighbourhoods of neighbours overlap: what a graph's degrees alone do not tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OverlapSample:
    """Paths u -> w -> z of a symmetric graph, as sampling walks them: from z to a neighbour w, then to u.

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
    """`others` and `other_degrees`: [n] float64, how many further paths of two edges lead from this u to this
    z, and the harmonic mean of the in-degrees in their middle (anything where there are none)."""
    direct: NDArray[np.bool_]
    """[n] bool, whether u is itself an in-neighbour of z."""
    chance_others: Floats
    chance_degrees: Floats
    chance_direct: NDArray[np.bool_]
    """`chance_others`, `chance_degrees` and `chance_direct`: [n], the same three of z and the u of another of
    the paths: what is met without clustering."""
    eligible: Floats
    """[n] float64, how many out-neighbours of u may be targets; 0 where z is none."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__slots__}
        if len(lengths) != 1:
            raise ValueError(f"overlap: arrays of lengths {sorted(lengths)}: give one entry per path")
        if len(self.others) and min(self.others.min(), self.chance_others.min()) < 0:
            raise ValueError("overlap: a number of further paths is negative")

    def distinct(self, first: int, second: int, repeats: tuple[int, ...], drawn: float) -> float:
        """Share of the paths of two edges that reach a vertex nothing else of theirs reaches, against chance.

        Parameters
        ----------
        first, second
            Fan-outs of z's and of w's draw; -1 takes all.
        repeats
            Fan-outs of further draws of z, whose picks are reached without a path of two edges.
        drawn
            The chance that a vertex that may be a target is one: other targets may have reached u anyway.

        Returns
        -------
        In 0..1; 1 for a graph in which paths meet no more often than by chance, and where there are no paths.
        """
        of_first = _share(first, self.first_degrees)
        pick = of_first * _share(second, self.second_degrees)
        kept = 1.0 - of_first
        for fanout in repeats:
            kept = kept * (1.0 - _share(fanout, self.first_degrees))
        weights = self.first_degrees * (self.second_degrees - 1.0) * pick
        if not weights.any():
            return 1.0
        missed = 1.0 - drawn * (1.0 - kept)
        absent = np.exp(self.eligible * np.log(np.maximum(missed, 1e-12)))
        alone = np.where(self.direct & (self.eligible > 0), absent / np.maximum(missed, 1e-12), absent)
        other = of_first * _share(second, self.other_degrees)
        found = weights @ (_met(pick, self.others, other) * np.where(self.direct, kept, 1.0) * alone)
        other = of_first * _share(second, self.chance_degrees)
        met = _met(pick, self.chance_others, other) * np.where(self.chance_direct, kept, 1.0)
        chance = weights @ (met * absent)
        return min(float(found) / float(chance), 1.0) if chance > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighborOverlap:
    """Overlap around targets, and around the vertices that edges lead to."""

    near: OverlapSample
    """Paths whose z is drawn as targets are."""
    far: OverlapSample
    """Paths whose z is drawn as vertices are reached: in proportion to their edges."""


def _met(pick: Floats, others: Floats, other: Floats) -> Floats:
    """Vertices that each path of a pair reaches: one with chance `pick`, `others` with chance `other`."""
    missed = np.exp(others * np.log1p(-np.minimum(other, 1.0 - 1e-12)))
    met: Floats = (1.0 - (1.0 - pick) * missed) / (pick + others * other)
    return met


def _share(fanout: int, degrees: Floats) -> Floats:
    """The part of its neighbours that a vertex samples."""
    if fanout < 0:
        return np.ones_like(degrees)
    return np.minimum(fanout / np.maximum(degrees, 1.0), 1.0)
