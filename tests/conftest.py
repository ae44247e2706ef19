"""For every test: a watchdog, the same random examples each time in CI, and no thread left behind."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

_LIMIT_S = 180.0

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("default", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_ERRORS = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # During tests descriptor 2 is captured: stacks go to a copy of the true one.
    config.stash[_ERRORS] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_ERRORS])


@pytest.fixture(autouse=True)
def _watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Turn a hang into every thread's stack and the end of the run."""
    marker = request.node.get_closest_marker("limit")
    limit_s = marker.args[0] if marker else _LIMIT_S
    faulthandler.dump_traceback_later(limit_s, exit=True, file=request.config.stash[_ERRORS])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread of hyrt running."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while left := [t.name for t in threading.enumerate() if t not in before and t.name.startswith("hyrt")]:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left behind: {', '.join(left)}")
        time.sleep(0.01)
