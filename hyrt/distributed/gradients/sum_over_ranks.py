"""Gradient all-reduce of a distributed run, which also agrees on stop signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hyrt.distributed.gradients.gradient_buckets import GradientBuckets
from hyrt.distributed.gradients.rows_over_ranks import RowsOverRanks
from hyrt.distributed.rank_group import RankGroup
from hyrt.machine.this_process.stop_signals import STOP_SIGNALS
from hyrt.pipeline.synchronize import StepTotals

_PURPOSE = "gradients"


class SumOverRanks:
    """Adds a step's sums over all ranks, so that all ranks make the same optimizer step.

    Equal sums on the same number of ranks give equal bits, and all ranks get the same bits.

    Parameters
    ----------
    group
        The ranks.
    parameters
        Master weights, for the gradient shapes at a rank without targets.
    counts
        Names of the objective's counts.
    stop_signal
        Returns the number of the signal that requests this rank to stop; 0 for none.
    buckets
        All-reduces gradients that may be reported before the step is complete; None reduces all gradients at
        the end of the step.
    rows
        All-reduces the sparse gradients of embedding tables; None if the model has none or does not train
        them.
    """

    def __init__(
        self,
        group: RankGroup,
        parameters: Sequence[torch.Tensor],
        counts: Sequence[str],
        stop_signal: Callable[[], int] = lambda: 0,
        buckets: GradientBuckets | None = None,
        rows: RowsOverRanks | None = None,
    ) -> None:
        self._group = group
        self._parameters = list(parameters)
        self._counts = list(counts)
        self._stop_signal = stop_signal
        self._buckets = buckets
        self._rows = rows
        self.agreed_signal = 0
        """Number of the signal after which all ranks stop, equal at all ranks; 0 for none."""

    def __call__(self, own: StepTotals) -> StepTotals:
        sums = torch.tensor(
            [
                own.loss_sum,
                own.normalizer,
                own.num_edges,
                bool(own.gradients),
                self._buckets is not None and self._buckets.is_void,
                *self._signal_flags(),
                *(own.counts.get(name, 0.0) for name in self._counts),
            ],
            dtype=torch.float64,
        )
        self._group.add(sums, _PURPOSE)
        loss_sum, normalizer, edges, with_gradients, is_void, *flags_and_counts = sums.tolist()
        counts = flags_and_counts[len(STOP_SIGNALS) :]
        self._agree(flags_and_counts[: len(STOP_SIGNALS)])
        return StepTotals(
            loss_sum=loss_sum,
            counts=dict(zip(self._counts, counts, strict=True)),
            normalizer=normalizer,
            gradients=self._sum_gradients(own.gradients, is_void=bool(is_void)) if with_gradients else (),
            num_edges=int(edges),
            row_gradients=() if self._rows is None else self._rows(own.row_gradients),
        )

    def agree_to_stop(self) -> None:
        """Agree whether one of the ranks was requested to stop; all ranks must call it at the same time."""
        flags = torch.tensor(self._signal_flags(), dtype=torch.float64)
        self._group.add(flags, "control")
        self._agree(flags.tolist())

    def _signal_flags(self) -> list[float]:
        signal = self._stop_signal()
        return [float(number == signal) for number in STOP_SIGNALS]

    def _agree(self, flags: Sequence[float]) -> None:
        by_signal = zip(STOP_SIGNALS, flags, strict=True)
        self.agreed_signal = next((int(number) for number, ranks in by_signal if ranks), 0)

    def _sum_gradients(self, local: Sequence[torch.Tensor], *, is_void: bool) -> list[torch.Tensor]:
        if self._buckets is None:
            return self._all_reduce(local)
        total = self._buckets.add(local)
        # A rank has recomputed the step after it had reported gradients.
        return self._buckets.add(local) if is_void else total

    def _all_reduce(self, local: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Add the gradients over all ranks, with one operation per dtype."""
        total: dict[int, torch.Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._parameters):
            indices = [index for index, parameter in enumerate(self._parameters) if parameter.dtype == dtype]
            sizes = [self._parameters[index].numel() for index in indices]
            if local:
                flat = torch.cat([local[index].reshape(-1) for index in indices])
            else:
                flat = torch.zeros(sum(sizes), dtype=dtype)
            self._group.add(flat, _PURPOSE)
            for index, part in zip(indices, torch.split(flat, sizes), strict=True):
                total[index] = part.view_as(self._parameters[index])
        return [total[index] for index in range(len(self._parameters))]
