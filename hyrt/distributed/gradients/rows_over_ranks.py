"""Sums over all ranks of the gradients of learned rows, of which each rank has those that it has read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.nn.typed.learned.learned_rows import LearnedRows, RowGradients, added_rows

_PURPOSE = "row gradients"


class RowsOverRanks:
    """Gives every rank the rows of all, added in the order of the ranks: all get the same bits.

    Parameters
    ----------
    group
        The ranks.
    tables
        The tables of the model, in the order of `tables_of`.
    """

    def __init__(self, group: RankGroup, tables: Sequence[LearnedRows]) -> None:
        self._group = group
        self._tables = list(tables)

    def __call__(self, own: Sequence[RowGradients]) -> list[RowGradients]:
        """The sums over all ranks; all call it at once."""
        mine = {each.table: each for each in own}
        parts: list[RowGradients] = []
        for number, table in enumerate(self._tables):
            empty = RowGradients(number, np.empty(0, np.int64), table.values.new_empty((0, table.width)))
            parts += self._of_ranks(mine.get(number, empty))
        return [each for each in added_rows(parts) if len(each.rows)]

    def _of_ranks(self, own: RowGradients) -> list[RowGradients]:
        """What each rank has of a table."""
        group, size = self._group, self._group.size
        counts = group.exchange_counts([len(own.rows)] * size, _PURPOSE)
        taken = []
        for sent in (torch.from_numpy(own.rows), own.values.contiguous()):
            room = sent.new_empty((sum(counts), *sent.shape[1:]))
            everywhere = sent.repeat(size, *[1] * (sent.ndim - 1))
            group.exchange(everywhere, [len(sent)] * size, room, counts, _PURPOSE)
            taken.append(torch.split(room, counts))
        return [RowGradients(own.table, rows.numpy(), values) for rows, values in zip(*taken, strict=True)]
