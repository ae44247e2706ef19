"""Page cache model for matrices that are stored in a file because they exceed the memory budget."""

from __future__ import annotations


def missed_s(file_bytes: float, moved_bytes: float, cached_bytes: float, bytes_per_s: float) -> float:
    """Return the seconds of disk I/O for pages that do not fit into the page cache.

    While all pages fit in memory, the file costs nothing: the system writes pages back in the background.
    Further pages have been evicted by their next use, since a step accesses the pages cyclically.

    Parameters
    ----------
    file_bytes
        Size of the file.
    moved_bytes
        Bytes read from the file and written to it.
    cached_bytes
        Memory available for the page cache.
    bytes_per_s
        Disk bandwidth.
    """
    if file_bytes <= 0:
        return 0.0
    return moved_bytes * max(0.0, 1 - cached_bytes / file_bytes) / bytes_per_s
