"""The reduction of a distributed run: sums over all ranks, and the agreement to stop."""

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
    """Adds a step's sums over all ranks, so that each of them makes the same step of its optimizer.

    Equal numbers of ranks with equal sums give equal bits, and all ranks get the same ones.

    Parameters
    ----------
    group
        The ranks.
    parameters
        The master weights, which tell the shapes of the gradients at a rank without targets.
    counts
        The names of what the objective counts.
    stop_signal
        Gives the number of the signal that asks this rank to stop; 0 for none.
    buckets
        Adds gradients that may be told before their step is through; None adds all of them then.
    rows
        Adds those of learned rows; None where the model has none, or no rank trains it.
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
        """The number of the signal after which all ranks stop; 0 for none. Equal at all ranks."""

    def __call__(self, own: StepTotals) -> StepTotals:
        figures = torch.tensor(
            [
                own.loss_sum,
                own.normalizer,
                own.num_edges,
                bool(own.gradients),
                self._buckets is not None and self._buckets.is_void,
                *self._asked(),
                *(own.counts.get(name, 0.0) for name in self._counts),
            ],
            dtype=torch.float64,
        )
        self._group.add(figures, _PURPOSE)
        loss_sum, normalizer, edges, with_gradients, is_void, *others = figures.tolist()
        counts = others[len(STOP_SIGNALS) :]
        self._agree(others[: len(STOP_SIGNALS)])
        return StepTotals(
            loss_sum=loss_sum,
            counts=dict(zip(self._counts, counts, strict=True)),
            normalizer=normalizer,
            gradients=self._sums(own.gradients, is_void=bool(is_void)) if with_gradients else (),
            num_edges=int(edges),
            row_gradients=() if self._rows is None else self._rows(own.row_gradients),
        )

    def agree_to_stop(self) -> None:
        """Let all ranks know whether one of them has been asked to stop; all call it at once."""
        asked = torch.tensor(self._asked(), dtype=torch.float64)
        self._group.add(asked, "control")
        self._agree(asked.tolist())

    def _asked(self) -> list[float]:
        here = self._stop_signal()
        return [float(number == here) for number in STOP_SIGNALS]

    def _agree(self, asked: Sequence[float]) -> None:
        by_signal = zip(STOP_SIGNALS, asked, strict=True)
        self.agreed_signal = next((int(number) for number, ranks in by_signal if ranks), 0)

    def _sums(self, own: Sequence[torch.Tensor], *, is_void: bool) -> list[torch.Tensor]:
        if self._buckets is None:
            return self._added(own)
        total = self._buckets.add(own)
        # A rank has computed the step anew, after it had told of gradients.
        return self._buckets.add(own) if is_void else total

    def _added(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients added over all ranks, each dtype in one operation."""
        total: dict[int, torch.Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._parameters):
            places = [at for at, parameter in enumerate(self._parameters) if parameter.dtype == dtype]
            sizes = [self._parameters[at].numel() for at in places]
            if own:
                flat = torch.cat([own[at].reshape(-1) for at in places])
            else:
                flat = torch.zeros(sum(sizes), dtype=dtype)
            self._group.add(flat, _PURPOSE)
            for at, part in zip(places, torch.split(flat, sizes), strict=True):
                total[at] = part.view_as(self._parameters[at])
        return [total[at] for at in range(len(self._parameters))]
