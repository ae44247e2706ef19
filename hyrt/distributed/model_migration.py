"""Migration of models and their gradient sums to other ranks between time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.strategies.placement import Ranks
from hyrt.pipeline.synchronize import StepTotals


class ModelMigration:
    """Sends this rank's model to its next rank and receives another model (HopGNN 5.1).

    Weights are sent as well, as in the paper. They have the same bits at every rank, so received weights are
    ignored and trainers keep theirs.

    Parameters
    ----------
    group
        The ranks, for the thread that adds gradients.
    parameters
        Master weights.
    move
        Returns, for a step and its completed time step, the rank of each model in this time step and in the
        next.
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
        """Return the gradient sums received with a model; losses and counts stay at their rank."""
        rank, size = self._group.rank, self._group.size
        now, then = self._move(step, time)
        target, source = int(then[np.flatnonzero(now == rank)[0]]), int(now[np.flatnonzero(then == rank)[0]])
        gradients = own.gradients or [torch.zeros_like(parameter) for parameter in self._parameters]
        sent = torch.cat([_tensor_bytes(tensor) for tensor in (*self._parameters, *gradients)])[None]
        received = torch.empty_like(sent)
        send_counts, receive_counts = [0] * size, [0] * size
        send_counts[target] = receive_counts[source] = 1
        self._group.exchange(sent, send_counts, received, receive_counts, "models")
        return replace(own, gradients=self._gradients(received[0]))

    def _gradients(self, model: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.nbytes for parameter in self._parameters]
        parts = torch.split(model[sum(sizes) :], sizes)
        return [
            part.clone().view(parameter.dtype).view_as(parameter)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]


def _tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
