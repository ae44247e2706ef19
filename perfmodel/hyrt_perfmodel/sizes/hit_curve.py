"""Cache hit rates of feature rows, as a function of the cached fraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import check_asked, target_chances
from hyrt_perfmodel.sizes.growth import Floats, Growth

_POINTS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class HitCurve:
    """Hit rates of caches that hold the most frequently read rows."""

    parts: Floats
    """[n] cached fractions of all rows, ascending from 0."""
    rates: Floats
    """[n] fraction of the reads that hit the cached rows."""

    @classmethod
    def of(cls, counts: Floats, visits: Floats, num_vertices: float) -> HitCurve:
        """Build a curve from classes of vertices.

        Parameters
        ----------
        counts
            [C] vertices per class.
        visits
            [C] reads of the row of each vertex in a class, over some period.
        num_vertices
            Number of vertices, including vertices of no class.
        """
        order = np.argsort(-visits, kind="stable")
        return cls.of_ranking(counts[order], visits[order], num_vertices)

    @classmethod
    def of_ranking(cls, counts: Floats, visits: Floats, num_vertices: float) -> HitCurve:
        """Build a curve for caches that hold the first classes, in the given order instead of by
        frequency.
        """
        rows = np.concatenate([[0.0], np.cumsum(counts)]) / max(num_vertices, 1.0)
        reads = np.concatenate([[0.0], np.cumsum(counts * visits)])
        rates = reads / reads[-1] if reads[-1] else np.zeros(len(reads))
        if len(rows) > _POINTS:
            indices = np.unique(np.geomspace(1, len(rows) - 1, _POINTS).astype(np.int64))
            indices = np.concatenate([[0], indices])
            rows, rates = rows[indices], rates[indices]
        return cls(rows, rates)

    def __call__(self, part: float) -> float:
        """Return the hit rate with a fraction `part` of all rows cached."""
        return float(np.interp(part, self.parts, self.rates))


def expected_hits(degrees: DegreeDistribution, fanouts: Sequence[int], targets: float) -> HitCurve:
    """Estimate hit rates of neighbor sampling from degrees alone, with equal reads for equal degrees.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        Neighbors per vertex and layer, the targets' layer first; -1 for all.
    targets
        Targets of the mini-batch.
    """
    check_asked(fanouts, targets)
    growth = Growth(degrees, target_chances(degrees, targets))
    for hop in range(len(fanouts)):
        growth.grow(fanouts[: hop + 1])
    return HitCurve.of(degrees.counts, growth.chances, degrees.num_vertices)
