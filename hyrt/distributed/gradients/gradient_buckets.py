"""Gradient buckets, whose all-reduce overlaps with the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hyrt.distributed.rank_group import Begun, RankGroup
from hyrt.errors import HyrtError

# Every operation has a fixed cost in messages, regardless of its size.
_MIN_BUCKET_BYTES = 256 * 2**10
_BUCKET_PURPOSE = "gradients"


def buckets_of(parameters: Sequence[torch.Tensor], least_bytes: int = _MIN_BUCKET_BYTES) -> list[list[int]]:
    """Group parameters into buckets that are reduced in one operation, in the order of the backward pass.

    Returns the indices of the parameters of each bucket.

    Parameters
    ----------
    parameters
        In layer order; the backward pass computes the gradients of the last parameters first.
    least_bytes
        Size at which a bucket is closed, in bytes. All parameters of a bucket have the same dtype.
    """
    buckets: list[list[int]] = []
    free_bytes = 0
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        if free_bytes <= 0 or parameters[buckets[-1][0]].dtype != parameter.dtype:
            buckets.append([])
            free_bytes = least_bytes
        buckets[-1].append(index)
        free_bytes -= parameter.nbytes
    return buckets


class GradientBuckets:
    """All-reduces a step's gradients bucket by bucket, as soon as each bucket is complete.

    All ranks reduce the same buckets in the same order, but may start at different times: a rank whose
    trainers
    do not report single gradients starts when it has all gradients. Equal gradients on the same number of
    ranks
    give equal bits, and all ranks get the same bits.

    Parameters
    ----------
    group
        The ranks; the group is not used for other operations.
    parameters
        Master weights.
    buckets
        Result of `buckets_of`.
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
        self._gradients: dict[int, torch.Tensor] = {}
        self._pending: list[tuple[torch.Tensor, Begun]] = []
        self.is_void = False
        """Whether the started operations are invalid, because the step has been recomputed."""

    def hear(self, place: int, gradient: torch.Tensor) -> None:
        """Add the gradient of one parameter, summed over this rank's targets of the step.

        Called by the thread that computes the gradient. Errors of lost ranks are raised later, by `add`.

        Parameters
        ----------
        place
            Index of the parameter.
        gradient
            Must not be modified until the step is over.
        """
        self.is_void = self.is_void or place in self._gradients
        if self.is_void or self._failure is not None:
            return
        self._gradients[place] = gradient
        try:
            while len(self._pending) < len(self._buckets):
                bucket = self._buckets[len(self._pending)]
                if any(i not in self._gradients for i in bucket):
                    return
                self._start_bucket(self._gradients.__getitem__)
        except HyrtError as error:
            self._failure = error

    def add(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sums over all ranks, in parameter order; all ranks must call it at the same time.

        Parameters
        ----------
        own
            Gradients of this rank; empty if it has none. Unless the step is void, gradients passed to `hear`
            are
            the same tensors.
        """
        if self._failure is not None:
            raise self._failure
        while len(self._pending) < len(self._buckets):
            self._start_bucket(lambda index: own[index] if own else torch.zeros_like(self._parameters[index]))
        total: dict[int, torch.Tensor] = {}
        for bucket, (flat, pending) in zip(self._buckets, self._pending, strict=True):
            pending.wait()
            sizes = [self._parameters[index].numel() for index in bucket]
            for index, part in zip(bucket, torch.split(flat, sizes), strict=True):
                total[index] = part.view_as(self._parameters[index])
        self._clear()
        return [total[index] for index in range(len(self._parameters))]

    def _start_bucket(self, gradient_of: Callable[[int], torch.Tensor]) -> None:
        bucket = self._buckets[len(self._pending)]
        flat = torch.cat([gradient_of(index).detach().reshape(-1) for index in bucket])
        self._pending.append((flat, self._group.begin_add(flat, _BUCKET_PURPOSE)))
