"""SIGINT at an exact point of a run: at the n-th check whether the run should stop.

A run checks after every step, between batches of an evaluation and, in tiled full-graph training, within
steps. The n-th check is thus the same point in every process, unlike an external signal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

# File to which the number of checks is written at the end of a run.
POLLS = "HYRT_TEST_POLLS"
# Number of the check at which the process sends itself SIGINT, from 1.
STOP_AT_POLL = "HYRT_TEST_STOP_AT_POLL"


class CountedPolls:
    """`should_stop` callback that counts its calls, and interrupts the process at one of them.

    Parameters
    ----------
    should_stop
        Whether the run has received a signal.
    stop_at
        Number of the call that sends SIGINT; 0 for none.
    """

    def __init__(self, should_stop: Callable[[], bool], stop_at: int) -> None:
        self._should_stop = should_stop
        self._stop_at = stop_at
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self) -> bool:
        with self._lock:
            self.count += 1
            if self.count == self._stop_at:
                os.kill(os.getpid(), signal.SIGINT)
                # Another thread receives the signal.
                while not self._should_stop():
                    time.sleep(0.001)
        return self._should_stop()


@contextmanager
def count_polls() -> Iterator[None]:
    """Count the checks of the runs in this context, if the environment requests it."""
    if POLLS not in os.environ:
        yield
        return
    from hyrt.cli import run_session

    compose_run = run_session.build_run
    all_polls: list[CountedPolls] = []

    def compose_counted(*words: Any, should_stop: Callable[[], bool], **more: Any) -> Any:
        polls = CountedPolls(should_stop, int(os.environ.get(STOP_AT_POLL, "0")))
        all_polls.append(polls)
        return compose_run(*words, should_stop=polls, **more)

    try:
        with mock.patch.object(run_session, "build_run", compose_counted):
            yield
    finally:
        Path(os.environ[POLLS]).write_text(str(sum(polls.count for polls in all_polls)))
