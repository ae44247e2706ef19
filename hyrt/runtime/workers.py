"""Team of worker threads for one stage, with chunk boundaries that do not depend on the number of threads."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import TracebackType

from hyrt.checks import check_int
from hyrt.runtime.buffer_pool import BufferPool

Chunk = Callable[[int, int], None]

IntervalCallback = Callable[[int, int], None]
"""Callback in a thread that has worked on a job, with start and end by `time.perf_counter_ns`."""

RunObserver = Callable[[Chunk], IntervalCallback | None]
"""Callback in the calling thread for each shared `Workers.run` call. It returns an `IntervalCallback` for the
threads that take part, or None.
"""


# Seconds to wait for a thread to end. A chunk takes milliseconds, so a slower thread is stuck.
_JOIN_S = 5.0
# Duration above which the time of a call is dominated by its work, not by waking threads.
_LONG_S = 1e-3
# Decay per call of the time that was measured for the other way (shared or alone), so that this way is
# eventually tried again.
_DECAY = 0.995
# Number of short calls that must follow a long call before a call is tried alone.
_MIN_SHORT_CALLS = 8
_MAX_KINDS = 1 << 10
_MAX_THREADS = 1 << 14


class _Job:
    """Call of `Workers.run`. Threads take chunks until none is left; the last one to finish sets `done`."""

    def __init__(self, work: Chunk, size: int, grain: int, worked: IntervalCallback | None = None) -> None:
        self._worked = worked
        self.work = work
        self.size = size
        self.grain = grain
        self.num_chunks = -(-size // grain)
        self._next = itertools.count()
        self._finished = itertools.count(1)
        self.done = threading.Event()
        self.error: BaseException | None = None

    def help(self) -> None:
        worked = self._worked
        began = ended = 0 if worked is None else time.perf_counter_ns()
        # next() on itertools.count is one bytecode under the interpreter lock, so no lock is needed.
        while (chunk := next(self._next)) < self.num_chunks:
            if self.error is None:
                start = chunk * self.grain
                try:
                    self.work(start, min(start + self.grain, self.size))
                except BaseException as error:
                    self.error = error
            if worked is not None:
                # Read the clock before the caller can continue, so that its next work is not included.
                ended = time.perf_counter_ns()
            if next(self._finished) == self.num_chunks:
                self.done.set()
        if worked is not None and ended > began:
            worked(began, ended)


class _MeasuredTimes:
    """Measured times of one kind of work, shared by the team or done by the caller alone.

    On virtual machines, waking a thread and passing on the interpreter lock takes 0.1 ms, which is more than
    some calls take in total.
    """

    __slots__ = ("alone_s", "shared_s", "short_calls")

    def __init__(self) -> None:
        self.shared_s, self.alone_s = 0.0, math.inf
        self.short_calls = _MIN_SHORT_CALLS

    def record(self, seconds: float, *, is_alone: bool) -> None:
        if is_alone:
            self.alone_s = _mean(self.alone_s, seconds)
            self.shared_s *= _DECAY
            return
        self.shared_s = _mean(self.shared_s, seconds)
        if seconds > _LONG_S:
            # Layers of other widths may have the same number of chunks, so share all calls if some are long.
            self.alone_s, self.short_calls = math.inf, 0
            return
        self.short_calls += 1
        if not math.isinf(self.alone_s):
            self.alone_s *= _DECAY
        elif self.short_calls > _MIN_SHORT_CALLS:
            # The time alone is unknown, so the next call is done alone to measure it.
            self.alone_s = 0.0


def _mean(known_s: float, seconds: float) -> float:
    """Return a moving mean, in which a single call that was interrupted has a limited effect."""
    return (known_s + min(seconds, 2 * known_s)) / 2 if known_s else seconds


def _work_alone(work: Chunk, size: int, grain: int) -> None:
    for start in range(0, size, grain):
        work(start, min(start + grain, size))


class Workers:
    """Resizable team of threads for calls that release the interpreter lock.

    The calling thread works too, so a team of one starts no thread. Chunk boundaries depend only on the size
    and the grain, so results that are computed chunk by chunk are equal for any number of threads.

    Parameters
    ----------
    count
        Number of threads, including the caller.
    name
        Prefix of thread names.
    on_start
        Called once in every started thread.
    pool
        Buffer pool for results of a step; None allocates new memory.
    """

    def __init__(
        self,
        count: int,
        name: str,
        on_start: Callable[[], None] | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        self.pool = pool
        self.observer: RunObserver | None = None
        """Observer of shared calls, with the times of each thread; set it between two calls of `run`."""
        self._name = name
        self._on_start = on_start
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._times: dict[tuple[object, int], _MeasuredTimes] = {}
        self.resize(count)

    @property
    def count(self) -> int:
        return len(self._threads) + 1

    def resize(self, count: int) -> None:
        """Change the number of threads. Must be called between two calls of `run`."""
        check_int(f"the number of threads of {self._name}", count, 1, _MAX_THREADS)
        if count != self.count:
            self._times.clear()
        before = self.count
        while self.count < count:
            thread = threading.Thread(target=self._work, name=f"{self._name}.{self.count}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The system refuses more threads. Stop the threads that have just started, so that none waits
                # forever.
                self.resize(before)
                raise
            self._threads.append(thread)
        surplus = self.count - count
        if surplus:
            for _ in range(surplus):
                self._jobs.put(None)
            # Any thread may receive a None: wait until as many threads as are surplus have ended.
            deadline = time.monotonic() + _JOIN_S
            while sum(thread.is_alive() for thread in self._threads) > count - 1:
                if time.monotonic() > deadline:
                    names = ", ".join(thread.name for thread in self._threads if thread.is_alive())
                    raise TimeoutError(f"a thread of {names} did not end within {_JOIN_S:g} s")
                for thread in self._threads:
                    thread.join(timeout=0.01)
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def run(self, work: Chunk, size: int, grain: int) -> None:
        """Call `work(start, stop)` on consecutive ranges of at most `grain` that cover `range(size)`.

        Return when all calls are done, or raise the first exception. Short work is done by the caller alone
        if this was faster in measurements.
        """
        if size <= 0:
            return
        self._run(work, size, grain, grain)

    def run_rows(self, work: Chunk, size: int, grain: int) -> None:
        """Run work like `run`, but with independent rows, so that ranges may begin and end anywhere.

        If the caller does all the work, it makes a single call, since each call may wait for the interpreter
        lock.
        """
        if size > 0:
            self._run(work, size, grain, size)

    def _run(self, work: Chunk, size: int, grain: int, alone: int) -> None:
        """Share the work in chunks of `grain`, or do it in the calling thread alone in chunks of `alone`."""
        num_chunks = -(-size // grain)
        if num_chunks == 1 or not self._threads:
            _work_alone(work, size, alone)
            return
        times = self._measured_times(work, num_chunks)
        started = time.perf_counter()
        if is_alone := times.alone_s < times.shared_s:
            _work_alone(work, size, alone)
        else:
            self._share(_Job(work, size, grain, None if self.observer is None else self.observer(work)))
        times.record(time.perf_counter() - started, is_alone=is_alone)

    def close(self) -> None:
        """End the threads. Raises TimeoutError, which names the thread, if a thread is stuck in its chunk."""
        self.resize(1)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TimeoutError as stuck:
            if error is None:
                raise
            # The first failure is the one that the user must see.
            error.add_note(str(stuck))

    def _measured_times(self, work: Chunk, num_chunks: int) -> _MeasuredTimes:
        """Return the measured times of calls with the same code and number of chunks, usually of
        one layer.
        """
        kind = getattr(work, "__code__", type(work)), num_chunks
        times = self._times.get(kind)
        if times is None:
            if len(self._times) >= _MAX_KINDS:
                self._times.clear()
            times = self._times[kind] = _MeasuredTimes()
        return times

    def _share(self, job: _Job) -> None:
        for _ in range(min(len(self._threads), job.num_chunks - 1)):
            self._jobs.put(job)
        job.help()
        job.done.wait()
        if job.error is not None:
            raise job.error

    def _work(self) -> None:
        if self._on_start is not None:
            self._on_start()
        _current.workers = self
        while (job := self._jobs.get()) is not None:
            job.help()
            # Drop the reference: an idle thread must not keep the arrays of its last job alive.
            del job


class _Current(threading.local):
    workers: Workers | None = None


_current = _Current()
_alone = Workers(1, "alone")


def current_workers() -> Workers:
    """Return the team of the calling thread's stage, or a team that is only the caller."""
    return _current.workers or _alone


@contextmanager
def use_workers(workers: Workers) -> Iterator[None]:
    """Within the block, make operators in the calling thread share their work with `workers`."""
    before = _current.workers
    _current.workers = workers
    try:
        yield
    finally:
        _current.workers = before
