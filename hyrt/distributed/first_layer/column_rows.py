"""Redistribution of feature rows so that each rank holds some columns of all rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.strategies.placement import Ranks
from hyrt.machine.workers import Workers

# Rows per exchange: the buffers stay small compared with the columns that a rank holds.
_ROWS = 65_536


def columns_of_all_rows(
    own: OwnRows, owners: Ranks, group: RankGroup, workers: Workers
) -> NDArray[np.float32]:
    """Gather this rank's columns of all rows, [V, columns]; every rank must call it at the same time.

    Parameters
    ----------
    own
        Rows of this rank, with all columns.
    owners
        [F] int32, rank that holds each column.
    group
        The ranks.
    workers
        Threads that read rows.
    """
    rank, size = group.rank, group.size
    columns = [np.flatnonzero(owners == item) for item in range(size)]
    vertices = [np.flatnonzero(own.homes == item) for item in range(size)]
    result = np.empty((len(own.homes), len(columns[rank])), np.float32)
    for start in range(0, max(len(item) for item in vertices), _ROWS):
        batch_vertices = [item[start : start + _ROWS] for item in vertices]
        rows = np.empty((len(batch_vertices[rank]), own.rows.width), np.float32)
        own.rows.rows(own.places[batch_vertices[rank]], rows, workers)
        sent = np.concatenate([rows[:, item].ravel() for item in columns])
        receive_counts = [len(item) * result.shape[1] for item in batch_vertices]
        received = np.empty(sum(receive_counts), np.float32)
        group.exchange(
            torch.from_numpy(sent),
            [len(rows) * len(item) for item in columns],
            torch.from_numpy(received),
            receive_counts,
            "columns",
        )
        result[np.concatenate(batch_vertices)] = received.reshape(-1, result.shape[1])
    return result
