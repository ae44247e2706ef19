"""Number of threads that torch operators use in the calling thread. Only this module changes it.

torch operators run on one thread, because the rounding of some of them (matrix products, the backward pass of
LayerNorm, sums of all elements) depends on the number of threads. Only user-defined modules use several
threads, since their operators are not divided into row ranges. torch stores part of the number per thread, so
every thread must set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_torch_threads(count: int) -> None:
    """Set the number of threads that torch operators use in the calling thread."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def use_one_torch_thread() -> None:
    """Make torch operators single-threaded in the calling thread, which is a thread of a team."""
    set_torch_threads(1)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of threads that torch operators use in the calling thread, within a `with` block."""
    before = torch.get_num_threads()
    set_torch_threads(count)
    try:
        yield
    finally:
        set_torch_threads(before)
