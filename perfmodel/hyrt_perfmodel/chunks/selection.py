"""Filtering of rows before they are copied to a device (NeuGraph, section 3.2, selective scheduling)."""

from __future__ import annotations

import math


def filter_below(copy_bytes_per_s: float, transfer_bytes_per_s: float) -> float:
    """Return the useful fraction of a chunk's rows below which filtering on the host saves time.

    Filtering a fraction u of B bytes takes u B / copy, and transferring them takes u B / transfer; without a
    filter all B bytes are transferred. Filtering is faster if u < copy / (copy + transfer).

    Parameters
    ----------
    copy_bytes_per_s
        Rate at which the host gathers rows into a buffer.
    transfer_bytes_per_s
        Bandwidth of the device's link; infinite for a device that reads host memory in place, for which rows
        are never filtered.
    """
    if math.isinf(transfer_bytes_per_s):
        return 0.0
    return copy_bytes_per_s / (copy_bytes_per_s + transfer_bytes_per_s)
