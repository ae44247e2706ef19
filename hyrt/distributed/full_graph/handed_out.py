"""Rows that one of several ranks has, brought to all of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import bytes_of
from hyrt.distributed.rank_group import RankGroup

Array = NDArray[Any]


def hand_out(rows: Array, root: int, group: RankGroup, purpose: str) -> None:
    """Replace the rows of all ranks of a group by those of one of them.

    That one sends each rank a part, and then every rank sends its part to those that lack it (van de Geijn).
    A link carries the rows at most twice so, whatever the number of ranks. Along a tree, as gloo broadcasts,
    the first rank sends them to several at once, and those wait for all of it before they send it on: for
    four ranks it takes three times as long as the rows do on one link.

    Parameters
    ----------
    rows
        [n, w] contiguous, of any dtype; overwritten at all other ranks.
    root
        The rank of the group that has them.
    group
        The ranks, which all call it.
    purpose
        What the bytes are counted for.
    """
    size, rank = group.size, group.rank
    if size < 2:
        return
    ends = [len(rows) * k // size for k in range(size + 1)]
    counts = [stop - start for start, stop in pairwise(ends)]
    nothing, nobody = rows[:0], [0] * size
    mine = rows[ends[rank] : ends[rank + 1]]
    if rank == root:
        # What a rank gives itself is copied, too.
        group.exchange(
            bytes_of(rows), counts, bytes_of(np.empty_like(mine)), _only(root, counts[root], size), purpose
        )
    else:
        group.exchange(bytes_of(nothing), nobody, bytes_of(mine), _only(root, counts[rank], size), purpose)
    lacking = [0 if other == root else counts[rank] for other in range(size)]
    copies = np.concatenate([mine] * (size - 1))
    if rank == root:
        group.exchange(bytes_of(copies), lacking, bytes_of(nothing), nobody, purpose)
    else:
        group.exchange(bytes_of(copies), lacking, bytes_of(rows), counts, purpose)


def _only(rank: int, count: int, size: int) -> list[int]:
    """So many of one rank, and none of the others."""
    return [count if other == rank else 0 for other in range(size)]
