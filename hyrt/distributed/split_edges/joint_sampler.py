"""A sampler of one rank whose neighbours are drawn by all ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyrt.distributed.split_edges.asked_hops import AskedHops, StepHops
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, Sampler


class JointSampler:
    """Samples mini-batches from neighbours that were asked for when the step was cut.

    So all ranks ask once a step, however many trainers and time steps each of them has.

    Parameters
    ----------
    sampler
        Makes the steps, and mini-batches from neighbours.
    hops
        Asks for neighbours.
    own_units
        Gives this rank's units of a step, for each of its time steps.
    workers
        The threads that draw for other ranks.
    in_flight
        The most steps that are under way at once.
    """

    def __init__(
        self,
        sampler: Sampler,
        hops: AskedHops,
        own_units: Callable[[int, Ids], list[Ids]],
        workers: Workers,
        in_flight: int,
    ) -> None:
        self._sampler = sampler
        self._hops = hops
        self._own_units = own_units
        self._workers = workers
        self._in_flight = in_flight
        self._asked: dict[int, StepHops] = {}

    def steps_per_epoch(self) -> int:
        return self._sampler.steps_per_epoch()

    def units(self, step: int) -> Ids:
        return self._sampler.units(step)

    def own_units(self, step: int, units: Ids) -> list[Ids]:
        """Units of a step that this rank trains; their neighbours are asked for."""
        own = self._own_units(step, units)
        self._asked[step] = self._hops.of_step(step, np.concatenate(own), self._workers)
        # Its buffers may be needed until the step is over: a failed share is sampled again.
        self._asked.pop(step - self._in_flight - 1, None)
        return own

    def end(self) -> None:
        """No more steps are cut: a thread that asks raises `ChannelClosed`. Any thread may call it."""
        self._hops.end()

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        return self._sampler.sample(step, units, workers, in_place=in_place, hops=self._asked[step])
