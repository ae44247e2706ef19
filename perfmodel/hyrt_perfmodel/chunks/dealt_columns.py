"""How columns of chunks are dealt out to devices."""

from __future__ import annotations

MOST_PARTS = 4096
"""The largest P: of that many, a table with a number for each of the P x P chunks takes 128 MiB."""


def dealt_columns(parts: int, speeds: tuple[float, ...]) -> list[list[int]]:
    """Deal columns of chunks out to devices, so that the one that is through last is through early.

    Parameters
    ----------
    parts
        P; columns are taken to cost alike.
    speeds
        Columns that each device computes in a unit of time; any unit.

    Returns
    -------
    The columns of each device, in order.
    """
    dealt: list[list[int]] = [[] for _ in speeds]
    for column in range(parts):
        ends = [(len(mine) + 1) / speed for mine, speed in zip(dealt, speeds, strict=True)]
        dealt[ends.index(min(ends))].append(column)
    return dealt


def least_parts(speeds: tuple[float, ...], most: int = 16) -> int:
    """The least P of which each device gets a column.

    Parameters
    ----------
    speeds
        Those of `dealt_columns`.
    most
        What it is at most, if there are no more devices: one that is slower than the others by so much is
        not worth the many small chunks.
    """
    most = max(most, len(speeds))
    return next((parts for parts in range(len(speeds), most) if all(dealt_columns(parts, speeds))), most)
