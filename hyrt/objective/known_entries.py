"""Number of known label entries per target."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def known_per_target(known: NDArray[np.bool_]) -> float | None:
    """Return the mean number of known entries per target for a mask [n, K]; None if all are unknown."""
    entries = int(np.count_nonzero(known))
    return entries / len(known) if entries else None
