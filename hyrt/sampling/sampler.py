"""What a sampler is."""

from __future__ import annotations

from typing import Protocol

from hyrt.sampling.block import Ids, MiniBatch
from hyrt.workers import Workers


class Sampler(Protocol):
    """Turns the work of a step into mini-batches.

    A step's work is cut into units that the split moves between trainers: single targets where mini-batches can be
    cut, whole subgraphs where they cannot. What a unit's sampled edges are depends on the seed and the step only,
    never on the units beside it.
    """

    def steps_per_epoch(self) -> int:
        """Number of steps in which every training target is met (once, where the sampler visits each once)."""
        ...

    def units(self, step: int) -> Ids:
        """[n] the units of one step of the run, in the order the split cuts them. The last step may have fewer."""
        ...

    def sample(self, step: int, units: Ids, workers: Workers, *, in_place: bool) -> MiniBatch:
        """Sample the mini-batch of some of a step's units.

        Parameters
        ----------
        step
            Step of the run, counted from 0.
        units
            A piece of `units(step)`.
        workers
            Who runs the chunks.
        in_place
            Leave the first block's sources unlabelled, to be read from the feature matrix in place.
        """
        ...
