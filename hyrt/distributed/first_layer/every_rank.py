"""Mini-batches of all ranks, which every rank can sample itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Sampler


class EveryRank:
    """Samples the mini-batches of all ranks.

    Parameters
    ----------
    sampler
        A separate sampler, because other threads may sample at the same time.
    units_of_ranks
        Returns the units of each rank, for a step and all of its units.
    in_place
        Whether blocks are read in place.
    """

    def __init__(
        self,
        sampler: Sampler,
        units_of_ranks: Callable[[int, Ids], Sequence[Ids]],
        *,
        in_place: bool,
    ) -> None:
        self._sampler = sampler
        self._units_of_ranks = units_of_ranks
        self._in_place = in_place

    def batches(self, step: int, workers: Workers) -> dict[int, MiniBatch]:
        """Sample the mini-batches of a step, by rank, without ranks that have no units.

        The caller releases the mini-batches.
        """
        return {
            rank: self._sampler.sample(step, units, workers, in_place=self._in_place)
            for rank, units in enumerate(self._units_of_ranks(step, self._sampler.units(step)))
            if len(units)
        }
