"""Processes that are forked from one in which other threads work, which do not come along."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# What a process says of itself: a child that starts another interpreter has another number.
_MARK = "HYRT_FORKED"
# torch from a slow disk; whoever forks goes on then, whatever becomes of the child.
_LONGEST_S = 120.0

_importing = threading.RLock()


@contextmanager
def importing() -> Iterator[None]:
    """Let no thread fork the process until the block, which imports, is through.

    A child would have the modules that are half imported here, locked by a thread that it does not have: its
    first use of them would wait for ever.
    """
    _wait_for_imports()
    with _importing:
        yield


@cache
def _wait_for_imports() -> None:
    """From now on, `os.fork` waits for `importing`."""
    held: list[bool] = []

    def before() -> None:
        held.append(_importing.acquire(timeout=_LONGEST_S))

    def after() -> None:
        if held.pop():
            _importing.release()

    # What is registered last comes first: `logging`, whose lock an import may take, has to come after this.
    assert logging
    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


@cache
def mark_forks() -> None:
    """From now on, processes that are forked from this one know it; see `was_forked_late`."""
    os.register_at_fork(after_in_child=lambda: os.environ.update({_MARK: str(os.getpid())}))


def was_forked_late() -> bool:
    """Whether this process was forked after `mark_forks`.

    OpenMP's threads are those of the parent: the first loop that torch shares among them would wait for ever.
    """
    return os.environ.get(_MARK) == str(os.getpid())
