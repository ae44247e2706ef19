"""Broadcast of rows by scatter and all-gather."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import bytes_of
from hyrt.distributed.rank_group import RankGroup

Array = NDArray[Any]


def hand_out(rows: Array, root: int, group: RankGroup, purpose: str) -> None:
    """Replace the rows of all ranks of a group by the rows of rank `root` (van de Geijn broadcast).

    The root scatters one part to each rank, and then every rank sends its part to the other ranks. Each link
    carries the rows at most twice, for any number of ranks. gloo broadcasts along a tree: the root sends to
    several ranks at once, and these forward only complete messages. For four ranks that takes three times the
    transfer time of the rows on one link.

    Parameters
    ----------
    rows
        [n, w] contiguous, of any dtype; overwritten at all ranks other than the root.
    root
        Rank of the group that provides the rows.
    group
        The ranks, which all call this function.
    purpose
        Purpose, for the byte counters.
    """
    size, rank = group.size, group.rank
    if size < 2:
        return
    ends = [len(rows) * k // size for k in range(size + 1)]
    counts = [stop - start for start, stop in pairwise(ends)]
    no_rows, no_counts = rows[:0], [0] * size
    local_part = rows[ends[rank] : ends[rank + 1]]
    if rank == root:
        # alltoall copies a rank's part for itself too, into this scratch array.
        group.exchange(
            bytes_of(rows),
            counts,
            bytes_of(np.empty_like(local_part)),
            _one_hot_counts(root, counts[root], size),
            purpose,
        )
    else:
        group.exchange(
            bytes_of(no_rows),
            no_counts,
            bytes_of(local_part),
            _one_hot_counts(root, counts[rank], size),
            purpose,
        )
    send_counts = [0 if other == root else counts[rank] for other in range(size)]
    copies = np.concatenate([local_part] * (size - 1))
    if rank == root:
        group.exchange(bytes_of(copies), send_counts, bytes_of(no_rows), no_counts, purpose)
    else:
        group.exchange(bytes_of(copies), send_counts, bytes_of(rows), counts, purpose)


def _one_hot_counts(rank: int, count: int, size: int) -> list[int]:
    """Return a list of counts that is `count` for one rank and 0 for all others."""
    return [count if other == rank else 0 for other in range(size)]
