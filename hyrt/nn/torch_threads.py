"""The number of threads that torch's operators use in a thread: the only module that changes it.

Thread teams (`hyrt.machine.workers`) are the parallelism: torch's operators run on one thread each, because
the rounding of some of them (matrix products, LayerNorm's backward pass, sums of all elements) depends on the
number of threads. Only user-defined modules, whose operators are not divided into row ranges, run on several.
torch keeps the number partly per thread, so that each thread has to set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_torch_threads(count: int) -> None:
    """Let the calling thread's torch operators use `count` threads from now on."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def use_one_torch_thread() -> None:
    """Let the calling thread's torch operators run on one thread from now on; for threads of a team."""
    set_torch_threads(1)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let the calling thread's torch operators use `count` threads inside the block."""
    before = torch.get_num_threads()
    set_torch_threads(count)
    try:
        yield
    finally:
        set_torch_threads(before)
