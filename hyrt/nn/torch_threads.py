"""Number of threads that torch operators use in the calling thread; no other module changes it.

torch operators run on one thread each, because the rounding of some operators (matrix products, LayerNorm's
backward pass, sums of all elements) depends on the number of threads. Only user-defined modules, whose
operators are not divided into row ranges, use several. torch stores the number partly per thread, so each
thread has to set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_torch_threads(count: int) -> None:
    """Set the number of threads for torch operators of the calling thread."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def use_one_torch_thread() -> None:
    """Make torch operators of the calling thread single-threaded; called by threads of a team."""
    set_torch_threads(1)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of threads for torch operators of the calling thread within a `with` block."""
    before = torch.get_num_threads()
    set_torch_threads(count)
    try:
        yield
    finally:
        set_torch_threads(before)
