"""Threads that share one stage's work, in chunks that do not depend on how many threads there are."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import TracebackType

from hyrt.checks import check_whole
from hyrt.machine.buffer_pool import BufferPool

Chunk = Callable[[int, int], None]

Worked = Callable[[int, int], None]
"""Called in a thread that has worked at a job: when it began and ended, in nanoseconds of
`time.perf_counter_ns`."""

Watch = Callable[[Chunk], Worked | None]
"""Called in the calling thread for each `Workers.run` that several threads share; returns what to call in
each of them when it has worked, or None."""


# A chunk takes milliseconds; a thread that needs longer than this to end is stuck.
_JOIN_S = 5.0
# Above this a call's time is its work, not the waking of threads.
_LONG_S = 1e-3
# Of the two ways to do some work, what the one not taken was seen to take fades by this each time, so that it
# is tried again after a while.
_FADING = 0.995
# Short calls in a row after a long one until one is done alone.
_TRUSTED = 8
_MOST_KINDS = 1 << 10
_MOST_THREADS = 1 << 14


class _Job:
    """One call of `Workers.run`: threads draw chunks until none is left; the last to finish says so."""

    def __init__(self, work: Chunk, size: int, grain: int, worked: Worked | None = None) -> None:
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
        # next() on itertools.count is one bytecode under the interpreter lock: no lock of our own.
        while (chunk := next(self._next)) < self.num_chunks:
            if self.error is None:
                start = chunk * self.grain
                try:
                    self.work(start, min(start + self.grain, self.size))
                except BaseException as error:
                    self.error = error
            if worked is not None:
                # Before the caller may go on: what it does then is no part of this.
                ended = time.perf_counter_ns()
            if next(self._finished) == self.num_chunks:
                self.done.set()
        if worked is not None and ended > began:
            worked(began, ended)


class _Seen:
    """What one kind of work was seen to take, shared by the team and done by the caller alone.

    Waking a thread and handing the interpreter lock over takes 0.1 ms on virtual machines, which is more than
    some work takes as a whole.
    """

    __slots__ = ("alone_s", "shared_s", "short_calls")

    def __init__(self) -> None:
        self.shared_s, self.alone_s = 0.0, math.inf
        self.short_calls = _TRUSTED

    def learn(self, seconds: float, *, is_alone: bool) -> None:
        if is_alone:
            self.alone_s = _mean(self.alone_s, seconds)
            self.shared_s *= _FADING
            return
        self.shared_s = _mean(self.shared_s, seconds)
        if seconds > _LONG_S:
            # Layers of other widths may have as many chunks: long work in between stays shared.
            self.alone_s, self.short_calls = math.inf, 0
            return
        self.short_calls += 1
        if not math.isinf(self.alone_s):
            self.alone_s *= _FADING
        elif self.short_calls > _TRUSTED:
            # Not known yet: the next call is done alone, to find out.
            self.alone_s = 0.0


def _mean(known_s: float, seconds: float) -> float:
    """A moving mean, of which no single call that was interrupted makes much."""
    return (known_s + min(seconds, 2 * known_s)) / 2 if known_s else seconds


def _work_alone(work: Chunk, size: int, grain: int) -> None:
    for start in range(0, size, grain):
        work(start, min(start + grain, size))


class Workers:
    """A resizable team of threads for calls that release the interpreter lock.

    The calling thread works too, so a team of one starts no thread. Chunk borders depend on the size and the
    grain only: results that are computed chunk by chunk are equal for any number of threads.

    Parameters
    ----------
    count
        Threads in the team, the caller included.
    name
        Prefix of the threads' names.
    on_start
        Called once in every thread the team starts.
    pool
        Memory for what the team computes in a step; fresh memory without one.
    """

    def __init__(
        self,
        count: int,
        name: str,
        on_start: Callable[[], None] | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        self.pool = pool
        self.watch: Watch | None = None
        """Called with which threads worked, and when; set it between two calls of `run`."""
        self._name = name
        self._on_start = on_start
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._seen: dict[tuple[object, int], _Seen] = {}
        self.resize(count)

    @property
    def count(self) -> int:
        return len(self._threads) + 1

    def resize(self, count: int) -> None:
        """Change the number of threads; call it between two calls of `run`."""
        check_whole(f"the number of threads of {self._name}", count, 1, _MOST_THREADS)
        if count != self.count:
            self._seen.clear()
        before = self.count
        while self.count < count:
            thread = threading.Thread(target=self._work, name=f"{self._name}.{self.count}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The system allows no more: those that were started must not wait for ever.
                self.resize(before)
                raise
            self._threads.append(thread)
        surplus = self.count - count
        if surplus:
            for _ in range(surplus):
                self._jobs.put(None)
            # Which thread draws a None is open: wait until that many have ended.
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

        Returns when all are done; the first exception is raised here. Short work is done by the caller alone
        where that was seen to be faster.
        """
        if size <= 0:
            return
        self._run(work, size, grain, grain)

    def run_rows(self, work: Chunk, size: int, grain: int) -> None:
        """As `run`, for work in which each row's result is its own, wherever ranges begin and end.

        Where the caller does all of it, that is one call: each call less is one time less that the thread has
        to get the interpreter lock back from another stage.
        """
        if size > 0:
            self._run(work, size, grain, size)

    def _run(self, work: Chunk, size: int, grain: int, alone: int) -> None:
        """Share chunks of `grain`, or do chunks of `alone` without the others."""
        num_chunks = -(-size // grain)
        if num_chunks == 1 or not self._threads:
            _work_alone(work, size, alone)
            return
        seen = self._seen_of(work, num_chunks)
        started = time.perf_counter()
        if is_alone := seen.alone_s < seen.shared_s:
            _work_alone(work, size, alone)
        else:
            self._share(_Job(work, size, grain, None if self.watch is None else self.watch(work)))
        seen.learn(time.perf_counter() - started, is_alone=is_alone)

    def close(self) -> None:
        """End the threads.

        Raises
        ------
        TimeoutError
            If one is stuck in its chunk; it is named.
        """
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
            # What failed first is what the user needs to read.
            error.add_note(str(stuck))

    def _seen_of(self, work: Chunk, num_chunks: int) -> _Seen:
        """What calls like this one took: of the same code, and as many chunks, which tells layers apart."""
        kind = getattr(work, "__code__", type(work)), num_chunks
        found = self._seen.get(kind)
        if found is None:
            if len(self._seen) >= _MOST_KINDS:
                self._seen.clear()
            found = self._seen[kind] = _Seen()
        return found

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
            # An idle thread must not keep the arrays of its last job.
            del job


class _Current(threading.local):
    workers: Workers | None = None


_current = _Current()
_alone = Workers(1, "alone")


def current_workers() -> Workers:
    """The team of the calling thread's stage, or a team of the caller alone."""
    return _current.workers or _alone


@contextmanager
def working(workers: Workers) -> Iterator[None]:
    """Let the operators that the calling thread runs inside the block share their work with `workers`."""
    before = _current.workers
    _current.workers = workers
    try:
        yield
    finally:
        _current.workers = before
