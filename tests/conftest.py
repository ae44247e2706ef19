"""For every test: a watchdog, equal examples each time in CI, a cache of its own, and no thread left."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from forked_runs import ForkedRuns
from hypothesis import settings

_LIMIT_S = 180.0

# As the command line has it, and before torch is loaded: threads that spin while they wait take the cores
# from the other process of tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("default", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_ERRORS = pytest.StashKey[int]()
_CACHE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def _leave_the_users_cache_alone(config: pytest.Config) -> None:
    """What this user measured on this machine must not change what tests see; compiled kernels may stay."""
    old = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    config.stash[_CACHE] = tempfile.TemporaryDirectory(prefix="hyrt-tests-")
    os.environ.setdefault("POCL_CACHE_DIR", str(old / "pocl" / "kcache"))
    os.environ.setdefault("HYRT_HLS_CACHE_DIR", str(old / "hyrt" / "hls"))
    own = Path(config.stash[_CACHE].name)
    with contextlib.suppress(OSError):
        loops = old / "hyrt" / "saga"
        loops.mkdir(parents=True, exist_ok=True)
        (own / "hyrt").mkdir()
        (own / "hyrt" / "saga").symlink_to(loops.resolve(), target_is_directory=True)
    os.environ["XDG_CACHE_HOME"] = str(own)


def pytest_configure(config: pytest.Config) -> None:
    _leave_the_users_cache_alone(config)
    # In the order of the folders, of which the first take longest. xdist would begin with the files of most
    # tests: those that take long with few would come last, with one process waiting for the other.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    # A shell starts what it puts in the background with SIGINT ignored, and what that starts ignores it, too.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # So does nohup with SIGHUP.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # During tests descriptor 2 is captured: stacks go to a copy of the true one.
    config.stash[_ERRORS] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the collector, which would visit the same half a million objects over and over."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    # Nor does it visit them while kernels are compiled, for which it would come hundreds of times.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_ERRORS])
    config.stash[_CACHE].cleanup()


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


@pytest.fixture(scope="session")
def runs() -> Iterator[ForkedRuns]:
    """Runs of `hyrt` in processes that cost no imports; the server starts with the first."""
    with ForkedRuns(PYTHONWARNINGS="error::ResourceWarning") as started:
        yield started
