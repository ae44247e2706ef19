"""Distributed neighbour sampler of one rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyrt.distributed.split_edges.asked_hops import AskedHops, StepHops
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, Sampler


class JointSampler:
    """Samples mini-batches from neighbours that were requested when the step was split.

    All ranks therefore exchange requests once per step, regardless of their numbers of trainers and time
    steps.

    Parameters
    ----------
    sampler
        Creates the steps, and mini-batches from neighbours.
    hops
        Requests neighbours from other ranks.
    own_units
        Returns this rank's units of a step, per time step.
    workers
        Threads that sample for other ranks.
    in_flight
        Maximum number of concurrent steps.
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
        self._local_units = own_units
        self._workers = workers
        self._in_flight = in_flight
        self._step_hops: dict[int, StepHops] = {}

    def steps_per_epoch(self) -> int:
        return self._sampler.steps_per_epoch()

    def units(self, step: int) -> Ids:
        return self._sampler.units(step)

    def own_units(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that this rank trains, after requesting their neighbours."""
        local = self._local_units(step, units)
        self._step_hops[step] = self._hops.of_step(step, np.concatenate(local), self._workers)
        # Keep the neighbours until the step is over, because a failed work item is sampled again.
        self._step_hops.pop(step - self._in_flight - 1, None)
        return local

    def end(self) -> None:
        """Stop splitting steps: a thread that requests neighbours raises `ChannelClosed`. Thread-safe."""
        self._hops.end()

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        return self._sampler.sample(step, units, workers, in_place=in_place, hops=self._step_hops[step])
