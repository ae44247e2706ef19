"""How many entries of a target's labels are known, where some are not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def known_per_target(known: NDArray[np.bool_]) -> float | None:
    """The mean number of known entries of a target, from [n, K] which are; None where there are none."""
    entries = int(np.count_nonzero(known))
    return entries / len(known) if entries else None
