"""All-reduce of the sparse gradients of embedding tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.nn.typed.learned.learned_rows import LearnedRows, RowGradients, added_rows

_SPARSE_PURPOSE = "row gradients"


class RowsOverRanks:
    """Adds the sparse gradients of all ranks in rank order, so that all ranks get the same bits.

    Parameters
    ----------
    group
        The ranks.
    tables
        Embedding tables of the model, in the order of `tables_of`.
    """

    def __init__(self, group: RankGroup, tables: Sequence[LearnedRows]) -> None:
        self._group = group
        self._tables = list(tables)

    def __call__(self, own: Sequence[RowGradients]) -> list[RowGradients]:
        """Return the sums over all ranks; all ranks must call it at the same time."""
        by_table = {gradients.table: gradients for gradients in own}
        parts: list[RowGradients] = []
        for number, table in enumerate(self._tables):
            empty = RowGradients(number, np.empty(0, np.int64), table.values.new_empty((0, table.width)))
            parts += self._all_gather(by_table.get(number, empty))
        return [gradients for gradients in added_rows(parts) if len(gradients.rows)]

    def _all_gather(self, local: RowGradients) -> list[RowGradients]:
        """Gather the gradients of one table from all ranks."""
        group, size = self._group, self._group.size
        counts = group.exchange_counts([len(local.rows)] * size, _SPARSE_PURPOSE)
        gathered = []
        for sent in (torch.from_numpy(local.rows), local.values.contiguous()):
            buffer = sent.new_empty((sum(counts), *sent.shape[1:]))
            copies = sent.repeat(size, *[1] * (sent.ndim - 1))
            group.exchange(copies, [len(sent)] * size, buffer, counts, _SPARSE_PURPOSE)
            gathered.append(torch.split(buffer, counts))
        return [
            RowGradients(local.table, rows.numpy(), values) for rows, values in zip(*gathered, strict=True)
        ]
