"""The columns of all feature rows that one rank keeps, sent by those who have the rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.strategies.placement import Ranks
from hyrt.machine.workers import Workers

# Rows that are sent at once: the buffers stay small beside the columns that a rank keeps.
_ROWS = 65_536


def columns_of_all_rows(
    own: OwnRows, owners: Ranks, group: RankGroup, workers: Workers
) -> NDArray[np.float32]:
    """[V, columns of this rank] float32; every rank calls it at once.

    Parameters
    ----------
    own
        The rows of this rank, which has all of their columns.
    owners
        [F] int32, the rank that keeps each column.
    group
        The ranks.
    workers
        The threads that read rows.
    """
    rank, size = group.rank, group.size
    columns = [np.flatnonzero(owners == each) for each in range(size)]
    vertices = [np.flatnonzero(own.homes == each) for each in range(size)]
    kept = np.empty((len(own.homes), len(columns[rank])), np.float32)
    for start in range(0, max(len(each) for each in vertices), _ROWS):
        pieces = [each[start : start + _ROWS] for each in vertices]
        rows = np.empty((len(pieces[rank]), own.rows.width), np.float32)
        own.rows.rows(own.places[pieces[rank]], rows, workers)
        given = np.concatenate([rows[:, each].ravel() for each in columns])
        taken_counts = [len(each) * kept.shape[1] for each in pieces]
        taken = np.empty(sum(taken_counts), np.float32)
        group.exchange(
            torch.from_numpy(given),
            [len(rows) * len(each) for each in columns],
            torch.from_numpy(taken),
            taken_counts,
            "columns",
        )
        kept[np.concatenate(pieces)] = taken.reshape(-1, kept.shape[1])
    return kept
