"""Models that move to another rank between two time steps, with the sums of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.strategies.placement import Ranks
from hyrt.pipeline.synchronize import StepTotals


class ModelMigration:
    """Sends the model that this rank has to where it goes next, and takes the one that comes (HopGNN 5.1).

    Weights travel too, as in the paper. They are the same bits at every rank, so that those that arrive are
    not looked at, and trainers keep theirs.

    Parameters
    ----------
    group
        The ranks, for the thread that adds gradients.
    parameters
        The master weights.
    move
        Gives, from a step and its time step that is over, the rank of each model in it and in the next.
    """

    def __init__(
        self,
        group: RankGroup,
        parameters: Sequence[torch.Tensor],
        move: Callable[[int, int], tuple[Ranks, Ranks]],
    ) -> None:
        self._group = group
        self._parameters = list(parameters)
        self._move = move

    def __call__(self, step: int, time: int, own: StepTotals) -> StepTotals:
        """The sums that have come with a model; losses and counts stay where they were computed."""
        rank, size = self._group.rank, self._group.size
        now, then = self._move(step, time)
        to, source = int(then[np.flatnonzero(now == rank)[0]]), int(now[np.flatnonzero(then == rank)[0]])
        gradients = own.gradients or [torch.zeros_like(parameter) for parameter in self._parameters]
        leaving = torch.cat([_bits(tensor) for tensor in (*self._parameters, *gradients)])[None]
        arriving = torch.empty_like(leaving)
        given, taken = [0] * size, [0] * size
        given[to] = taken[source] = 1
        self._group.exchange(leaving, given, arriving, taken, "models")
        return replace(own, gradients=self._gradients(arriving[0]))

    def _gradients(self, model: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.nbytes for parameter in self._parameters]
        parts = torch.split(model[sum(sizes) :], sizes)
        return [
            part.clone().view(parameter.dtype).view_as(parameter)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
