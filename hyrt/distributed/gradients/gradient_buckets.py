"""Sums of gradients over all ranks that begin while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hyrt.distributed.rank_group import Begun, RankGroup
from hyrt.errors import HyrtError

# An operation costs each rank some messages, whatever it carries.
_LEAST_BYTES = 256 * 2**10
_PURPOSE = "gradients"


def buckets_of(parameters: Sequence[torch.Tensor], least_bytes: int = _LEAST_BYTES) -> list[list[int]]:
    """Places of parameters that are summed in one operation, in the order in which backward passes end.

    Parameters
    ----------
    parameters
        In the order of the layers: the gradients of the last ones come first.
    least_bytes
        A bucket is closed when it has so many; one has parameters of one dtype.
    """
    buckets: list[list[int]] = []
    room = 0
    for place in reversed(range(len(parameters))):
        parameter = parameters[place]
        if room <= 0 or parameters[buckets[-1][0]].dtype != parameter.dtype:
            buckets.append([])
            room = least_bytes
        buckets[-1].append(place)
        room -= parameter.nbytes
    return buckets


class GradientBuckets:
    """Adds a step's gradients over all ranks, each bucket from when it is there.

    All ranks add the same buckets in the same order, whenever each of them begins: a rank whose trainers do
    not tell of single gradients begins when it has all of them. Equal gradients on as many ranks give equal
    bits, and all ranks get the same ones.

    Parameters
    ----------
    group
        The ranks; no other operations are on it.
    parameters
        The master weights.
    buckets
        From `buckets_of`.
    """

    def __init__(
        self, group: RankGroup, parameters: Sequence[torch.Tensor], buckets: Sequence[Sequence[int]]
    ) -> None:
        self._group = group
        self._parameters = list(parameters)
        self._buckets = [list(bucket) for bucket in buckets]
        self._failure: HyrtError | None = None
        self._clear()

    def _clear(self) -> None:
        self._heard: dict[int, torch.Tensor] = {}
        self._begun: list[tuple[torch.Tensor, Begun]] = []
        self.is_void = False
        """Whether what was begun is not the step's, because it has been computed anew."""

    def hear(self, place: int, gradient: torch.Tensor) -> None:
        """Take the gradient of one parameter, of all that this rank trains in the step.

        Called by the thread that computes it. If ranks are lost, `add` raises it.

        Parameters
        ----------
        place
            Which parameter.
        gradient
            Left alone until the step is over.
        """
        self.is_void = self.is_void or place in self._heard
        if self.is_void or self._failure is not None:
            return
        self._heard[place] = gradient
        try:
            while len(self._begun) < len(self._buckets):
                bucket = self._buckets[len(self._begun)]
                if any(each not in self._heard for each in bucket):
                    return
                self._begin(self._heard.__getitem__)
        except HyrtError as error:
            self._failure = error

    def add(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sums over all ranks, in the order of the parameters; all ranks call it at once.

        Parameters
        ----------
        own
            The gradients of this rank; empty where it has none. Where the step is not void, those that have
            been heard are these.
        """
        if self._failure is not None:
            raise self._failure
        while len(self._begun) < len(self._buckets):
            self._begin(lambda place: own[place] if own else torch.zeros_like(self._parameters[place]))
        total: dict[int, torch.Tensor] = {}
        for bucket, (flat, begun) in zip(self._buckets, self._begun, strict=True):
            begun.wait()
            sizes = [self._parameters[place].numel() for place in bucket]
            for place, part in zip(bucket, torch.split(flat, sizes), strict=True):
                total[place] = part.view_as(self._parameters[place])
        self._clear()
        return [total[place] for place in range(len(self._parameters))]

    def _begin(self, gradient_of: Callable[[int], torch.Tensor]) -> None:
        bucket = self._buckets[len(self._begun)]
        flat = torch.cat([gradient_of(place).detach().reshape(-1) for place in bucket])
        self._begun.append((flat, self._group.begin_add(flat, _PURPOSE)))
