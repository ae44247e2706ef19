"""Whether a process was forked from one in which torch's threads had worked: they do not come along."""

from __future__ import annotations

import os
from functools import cache

# What a process says of itself: a child that starts another interpreter has another number.
_MARK = "HYRT_FORKED"


@cache
def mark_forks() -> None:
    """From now on, processes that are forked from this one know it; see `was_forked_late`."""
    os.register_at_fork(after_in_child=lambda: os.environ.update({_MARK: str(os.getpid())}))


def was_forked_late() -> bool:
    """Whether this process was forked after `mark_forks`.

    OpenMP's threads are those of the parent: the first loop that torch shares among them would wait for ever.
    """
    return os.environ.get(_MARK) == str(os.getpid())
