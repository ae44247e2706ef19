"""How many of the rows that a trainer reads it would have if it kept some of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import check_asked, target_chances
from hyrt_perfmodel.sizes.growth import Growth

Floats = NDArray[np.float64]

_POINTS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class HitCurve:
    """Hit rates of caches that hold the rows that are read most."""

    parts: Floats
    """[n] parts of all rows, growing, the first one 0."""
    rates: Floats
    """[n] which part of the reads are of these rows."""

    @classmethod
    def of(cls, counts: Floats, visits: Floats, num_vertices: float) -> HitCurve:
        """From classes of vertices.

        Parameters
        ----------
        counts
            [C] the vertices of each class.
        visits
            [C] how often the row of each of them is read in some time.
        num_vertices
            All vertices, those of no class included.
        """
        order = np.argsort(-visits, kind="stable")
        return cls.of_ranking(counts[order], visits[order], num_vertices)

    @classmethod
    def of_ranking(cls, counts: Floats, visits: Floats, num_vertices: float) -> HitCurve:
        """As `of`, of caches that hold the rows of the first classes, however often they are read."""
        rows = np.concatenate([[0.0], np.cumsum(counts)]) / max(num_vertices, 1.0)
        reads = np.concatenate([[0.0], np.cumsum(counts * visits)])
        rates = reads / reads[-1] if reads[-1] else np.zeros(len(reads))
        if len(rows) > _POINTS:
            at = np.unique(np.geomspace(1, len(rows) - 1, _POINTS).astype(np.int64))
            at = np.concatenate([[0], at])
            rows, rates = rows[at], rates[at]
        return cls(rows, rates)

    def __call__(self, part: float) -> float:
        """The hit rate where a part of all rows is kept."""
        return float(np.interp(part, self.parts, self.rates))


def expected_hits(degrees: DegreeDistribution, fanouts: Sequence[int], targets: float) -> HitCurve:
    """Hit rates of neighbour sampling, from the degrees alone: vertices of like degree are read alike.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    targets
        Targets of the mini-batch.
    """
    check_asked(fanouts, targets)
    growth = Growth(degrees, target_chances(degrees, targets))
    for hop in range(len(fanouts)):
        growth.grow(fanouts[: hop + 1])
    return HitCurve.of(degrees.counts, growth.chances, degrees.num_vertices)
