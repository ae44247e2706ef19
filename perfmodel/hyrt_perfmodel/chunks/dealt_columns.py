"""Assignment of chunk columns to devices."""

from __future__ import annotations

MOST_PARTS = 4096
"""Maximum P: a table with one number per chunk (P x P) then takes 128 MiB."""


def dealt_columns(parts: int, speeds: tuple[float, ...]) -> list[list[int]]:
    """Assign columns of chunks to devices, each to the device that would finish first.

    Parameters
    ----------
    parts
        P; all columns are assumed to have equal cost.
    speeds
        Columns that each device computes per unit of time; any unit.

    Returns
    -------
    The columns of each device, in order.
    """
    columns: list[list[int]] = [[] for _ in speeds]
    for column in range(parts):
        ends = [(len(assigned) + 1) / speed for assigned, speed in zip(columns, speeds, strict=True)]
        columns[ends.index(min(ends))].append(column)
    return columns


def least_parts(speeds: tuple[float, ...], most: int = 16) -> int:
    """Return the smallest P for which each device gets a column.

    Parameters
    ----------
    speeds
        Speeds as in `dealt_columns`.
    most
        Maximum result, unless there are more devices: a device slower than the others by this factor is not
        worth the many small chunks.
    """
    most = max(most, len(speeds))
    return next((parts for parts in range(len(speeds), most) if all(dealt_columns(parts, speeds))), most)
