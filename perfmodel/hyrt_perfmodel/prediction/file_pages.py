"""What a file costs in which matrices live that exceed a budget of memory."""

from __future__ import annotations


def missed_s(file_bytes: float, moved_bytes: float, cached_bytes: float, bytes_per_s: float) -> float:
    """Seconds in which the disk reads and writes pages that the system's page cache cannot keep.

    While all pages are in memory, the file costs nothing: the system writes them out beside. Pages beyond are
    gone when they are wanted again, since a step goes through them in turn.

    Parameters
    ----------
    file_bytes
        Size of the file.
    moved_bytes
        What is read from it and written to it.
    cached_bytes
        Memory that is free for its pages.
    bytes_per_s
        How fast the disk is.
    """
    if file_bytes <= 0:
        return 0.0
    return moved_bytes * max(0.0, 1 - cached_bytes / file_bytes) / bytes_per_s
