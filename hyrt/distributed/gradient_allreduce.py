"""All-reduce of dense gradients, of the sparse gradients of embedding tables, and of stop signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from hyrt.distributed.process_group import PendingCollective, RankGroup
from hyrt.errors import HyrtError
from hyrt.nn.hetero.inputs import NodeEmbedding, SparseGradient, add_sparse_gradients
from hyrt.pipeline.synchronize import StepTotals
from hyrt.runtime.shutdown import STOP_SIGNALS

# Every operation has a fixed cost in messages, so tiny buckets would waste time.
_MIN_BUCKET_BYTES = 256 * 2**10
_BUCKET_PURPOSE = "gradients"


def build_buckets(parameters: Sequence[torch.Tensor], min_bytes: int = _MIN_BUCKET_BYTES) -> list[list[int]]:
    """Group parameters into buckets, each of which is reduced in one operation, in backward-pass order.

    `parameters` are in layer order; the backward pass computes the gradients of the last layer first. A
    bucket is complete at `min_bytes`, and its parameters have one dtype. Return the parameter indices of each
    bucket.
    """
    buckets: list[list[int]] = []
    free_bytes = 0
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        if free_bytes <= 0 or parameters[buckets[-1][0]].dtype != parameter.dtype:
            buckets.append([])
            free_bytes = min_bytes
        buckets[-1].append(index)
        free_bytes -= parameter.nbytes
    return buckets


class GradientBuckets:
    """All-reduce of a step's gradients bucket by bucket, as soon as each bucket is complete.

    All ranks reduce the same buckets in the same order, but may start at different times: if a rank's
    trainers do not report individual gradients, it starts when all are ready. Equal gradients on the
    same number of ranks give equal bits, and all ranks get the same bits. `group` must not be used for other
    operations.
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
        self._pending: list[tuple[torch.Tensor, PendingCollective]] = []
        self.is_invalid = False
        """Whether the results of the started operations are invalid because the step has been recomputed."""

    def add_gradient(self, index: int, gradient: torch.Tensor) -> None:
        """Add the gradient of one parameter, summed over this rank's targets of the step.

        The thread that computes the gradient calls this; the gradient must not be modified until the step is
        over. If a rank is lost, `all_reduce` raises the error.
        """
        self.is_invalid = self.is_invalid or index in self._gradients
        if self.is_invalid or self._failure is not None:
            return
        self._gradients[index] = gradient
        try:
            while len(self._pending) < len(self._buckets):
                bucket = self._buckets[len(self._pending)]
                if any(i not in self._gradients for i in bucket):
                    return
                self._start_bucket(self._gradients.__getitem__)
        except HyrtError as error:
            self._failure = error

    def all_reduce(self, local: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sums over all ranks, in parameter order; all ranks must call this at the same time.

        `local` is empty if this rank has no gradients. Unless the step was recomputed, it has the tensors
        that were passed to `add_gradient`.
        """
        if self._failure is not None:
            raise self._failure
        while len(self._pending) < len(self._buckets):
            self._start_bucket(
                lambda index: local[index] if local else torch.zeros_like(self._parameters[index])
            )
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
        self._pending.append((flat, self._group.start_all_reduce(flat, _BUCKET_PURPOSE)))


_SPARSE_PURPOSE = "row gradients"


class SparseGradientAllReduce:
    """Reduction that adds the sparse gradients of all ranks in rank order, so all ranks get the same bits.

    `tables` are the model's embedding tables in the order of `find_embeddings`.
    """

    def __init__(self, group: RankGroup, tables: Sequence[NodeEmbedding]) -> None:
        self._group = group
        self._tables = list(tables)

    def __call__(self, local: Sequence[SparseGradient]) -> list[SparseGradient]:
        """Return the sums over all ranks; all ranks must call this at the same time."""
        by_table = {gradients.table: gradients for gradients in local}
        parts: list[SparseGradient] = []
        for number, table in enumerate(self._tables):
            empty = SparseGradient(number, np.empty(0, np.int64), table.values.new_empty((0, table.width)))
            parts += self._all_gather(by_table.get(number, empty))
        return [gradients for gradients in add_sparse_gradients(parts) if len(gradients.rows)]

    def _all_gather(self, local: SparseGradient) -> list[SparseGradient]:
        group, size = self._group, self._group.size
        counts = group.exchange_counts([len(local.rows)] * size, _SPARSE_PURPOSE)
        gathered = []
        for sent in (torch.from_numpy(local.rows), local.values.contiguous()):
            buffer = sent.new_empty((sum(counts), *sent.shape[1:]))
            copies = sent.repeat(size, *[1] * (sent.ndim - 1))
            group.all_to_all(copies, [len(sent)] * size, buffer, counts, _SPARSE_PURPOSE)
            gathered.append(torch.split(buffer, counts))
        return [
            SparseGradient(local.table, rows.numpy(), values) for rows, values in zip(*gathered, strict=True)
        ]


_PURPOSE = "gradients"


class GradientAllReduce:
    """Reduction of a step's results over all ranks, after which all ranks take the same optimizer step.

    Equal sums on the same number of ranks give equal bits, and all ranks get the same bits. `parameters` give
    the gradient shapes at a rank without targets. `stop_signal` returns the number of the signal that this
    rank has received to stop, or 0. `buckets` reduces gradients that may be reported before the step is
    complete; None reduces all gradients at the end of the step. `rows` reduces the sparse gradients of
    embedding tables; None if the model has none or does not train them.
    """

    def __init__(
        self,
        group: RankGroup,
        parameters: Sequence[torch.Tensor],
        counts: Sequence[str],
        stop_signal: Callable[[], int] = lambda: 0,
        buckets: GradientBuckets | None = None,
        rows: SparseGradientAllReduce | None = None,
    ) -> None:
        self._group = group
        self._parameters = list(parameters)
        self._counts = list(counts)
        self._stop_signal = stop_signal
        self._buckets = buckets
        self._rows = rows
        self.agreed_signal = 0
        """Number of the signal after which all ranks stop, which is equal at all ranks, or 0."""

    def __call__(self, totals: StepTotals) -> StepTotals:
        sums = torch.tensor(
            [
                totals.loss_sum,
                totals.normalizer,
                totals.num_edges,
                bool(totals.gradients),
                self._buckets is not None and self._buckets.is_invalid,
                *self._signal_flags(),
                *(totals.counts.get(name, 0.0) for name in self._counts),
            ],
            dtype=torch.float64,
        )
        self._group.all_reduce(sums, _PURPOSE)
        loss_sum, normalizer, edges, with_gradients, is_void, *flags_and_counts = sums.tolist()
        counts = flags_and_counts[len(STOP_SIGNALS) :]
        self._agree(flags_and_counts[: len(STOP_SIGNALS)])
        return StepTotals(
            loss_sum=loss_sum,
            counts=dict(zip(self._counts, counts, strict=True)),
            normalizer=normalizer,
            gradients=self._sum_gradients(totals.gradients, is_void=bool(is_void)) if with_gradients else (),
            num_edges=int(edges),
            row_gradients=() if self._rows is None else self._rows(totals.row_gradients),
        )

    def agree_to_stop(self) -> None:
        """Agree on whether any rank was requested to stop; all ranks must call this at the same time."""
        flags = torch.tensor(self._signal_flags(), dtype=torch.float64)
        self._group.all_reduce(flags, "control")
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
        total = self._buckets.all_reduce(local)
        # A rank had already reported gradients when it recomputed the step, so reduce all gradients again.
        return self._buckets.all_reduce(local) if is_void else total

    def _all_reduce(self, local: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        total: dict[int, torch.Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._parameters):
            indices = [index for index, parameter in enumerate(self._parameters) if parameter.dtype == dtype]
            sizes = [self._parameters[index].numel() for index in indices]
            if local:
                flat = torch.cat([local[index].reshape(-1) for index in indices])
            else:
                flat = torch.zeros(sum(sizes), dtype=dtype)
            self._group.all_reduce(flat, _PURPOSE)
            for index, part in zip(indices, torch.split(flat, sizes), strict=True):
                total[index] = part.view_as(self._parameters[index])
        return [total[index] for index in range(len(self._parameters))]
