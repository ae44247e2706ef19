"""When rows are filtered before they are copied to a device (NeuGraph, section 3.2, selective scheduling)."""

from __future__ import annotations

import math


def filter_below(copy_bytes_per_s: float, transfer_bytes_per_s: float) -> float:
    """The useful fraction of a chunk's rows below which filtering them on the host saves time.

    To filter a fraction u of B bytes takes u B / copy, and to transfer them u B / transfer; without a filter
    all B bytes are transferred. The former is less where u < copy / (copy + transfer).

    Parameters
    ----------
    copy_bytes_per_s
        How fast the host gathers rows into a buffer.
    transfer_bytes_per_s
        How fast the device's link takes them; infinite for a device that reads host memory in place, for
        which nothing is filtered.
    """
    if math.isinf(transfer_bytes_per_s):
        return 0.0
    return copy_bytes_per_s / (copy_bytes_per_s + transfer_bytes_per_s)
