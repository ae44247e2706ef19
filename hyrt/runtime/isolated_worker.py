"""Worker process for code that may crash or hang, and the main loop of this process."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hyrt.errors import describe_error, one_line, system_error_text
from hyrt.runtime.process_setup import prepare_process

# Multiple of the limit that a busy child may take, since it gets only part of the CPU time of a busy machine.
BUSY_FACTOR = 5
POLL_INTERVAL_S = 0.25
# Longest gap between two checks that counts. In a longer gap, this process was paused or the machine slept.
_MAX_GAP_S = 1.0
# Minimum CPU usage of a busy process, as a fraction of a CPU. Timer ticks of idle threads stay below it.
_MIN_CPU_FRACTION = 0.1
_STOPPED_STATES = "Tt"


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """CPU and I/O activity of a process, as reported by the system."""

    cpu_s: float
    """CPU time of the process in seconds, or of its whole session if it waits for other processes there."""
    is_ready: bool = False
    """Whether the process is running or runnable."""
    is_stopped: bool = False
    """Whether a signal has stopped the process."""
    pages_read: int = 0
    """Memory pages read from disk, for example while importing libraries."""


class HangDetector:
    """Detector that limits the idle and the busy time of one item in a child process.

    The child may be idle for `limit_s` seconds, and its total time may be `BUSY_FACTOR` times as long.
    `activity` returns the activity of the child, or None if the system does not report it; then all time
    counts as idle.
    """

    def __init__(
        self,
        limit_s: float,
        activity: Callable[[], ProcessActivity | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._activity = activity
        self._clock = clock
        self._looked = clock()
        self._before: ProcessActivity | None = None
        self._waited_s = 0.0
        self._worked_s = 0.0

    def check(self) -> str:
        """Return why the item counts as hanging, otherwise "". Frequent calls count as one."""
        now = self._clock()
        elapsed = now - self._looked
        if elapsed < min(POLL_INTERVAL_S, self._limit_s) / 2:
            return ""
        self._looked = now
        activity = self._activity()
        before, self._before = self._before, activity
        counted = min(elapsed, _MAX_GAP_S)
        if activity is None:
            self._waited_s += counted
        elif not activity.is_stopped:
            before = before or activity
            spent, read = activity.cpu_s - before.cpu_s, activity.pages_read - before.pages_read
            if activity.is_ready or spent >= _MIN_CPU_FRACTION * elapsed or read > 0:
                self._worked_s += counted
            else:
                self._waited_s += counted
        if self._waited_s >= self._limit_s:
            return f"hangs: no answer within {self._limit_s:g} s"
        if self._waited_s + self._worked_s >= BUSY_FACTOR * self._limit_s:
            return f"hangs: computes, but gives no answer within {BUSY_FACTOR * self._limit_s:g} s"
        return ""


def read_activity(pid: int, proc: Path = Path("/proc")) -> ProcessActivity | None:
    """Return the activity of a session leader from Linux's /proc; None if it is not available."""
    leader = _stat(proc / str(pid))
    if leader is None:
        return None
    states, cpu_s, pages = leader[0], leader[2], leader[3]
    if states not in _STOPPED_STATES and states != "R":
        # The process may be waiting for a compiler that it has started.
        try:
            names = [name for name in os.listdir(proc) if name.isdigit() and int(name) != pid]
        except OSError:
            names = []
        for name in names:
            other = _stat(proc / name)
            if other is not None and other[1] == pid:
                states += other[0]
                cpu_s += other[2]
    return ProcessActivity(
        cpu_s, is_ready="R" in states, is_stopped=states[0] in _STOPPED_STATES, pages_read=pages
    )


def _stat(process: Path) -> tuple[str, int, float, int] | None:
    """Return the state, session, CPU seconds and pages read of a process; None if it has ended."""
    try:
        text = (process / "stat").read_text()
        # Skip the process name in parentheses, which may contain anything.
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return fields[0], int(fields[3]), ticks / os.sysconf("SC_CLK_TCK"), int(fields[9])
    except (OSError, ValueError, IndexError):
        return None


_START = (
    "import json, os, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from hyrt.runtime.isolated_worker import answer_requests\n"
    "answer_requests(int(sys.argv[1]))\n"
    # Skip interpreter exit, at which drivers may crash or hang. All answers have been sent by now.
    "os._exit(0)\n"
)
ITEM_START = b"\x1e"
"""Marker that a child prints when it starts an item."""
_READ_BYTES = 1 << 16
_MAX_OUTPUT_BYTES = 1 << 16


class ChildProcess:
    """Running child process. Call `reap` to end it."""

    def __init__(self) -> None:
        # Use a separate pipe for messages, because drivers may use standard input and output.
        self._messages, child_end = Pipe()
        with child_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-X", "faulthandler", "-c", _START),
                    *(str(child_end.fileno()), json.dumps(sys.path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[child_end.fileno()],
                start_new_session=True,
            )
        assert self._process.stdout
        self._printed = self._process.stdout
        self._open: list[Connection | int] = [self._messages, self._printed.fileno()]
        self._output = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the child has closed its message pipe."""
        return self._messages not in self._open

    @property
    def recent_output(self) -> str:
        """End of the child's output since the start of the current item."""
        return self._output.rpartition(ITEM_START)[2].decode(errors="replace")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. If the child has ended, `has_ended` becomes true."""
        try:
            self._messages.send_bytes(json.dumps(message).encode())
        except BrokenPipeError:
            pass

    def receive(self, wait_s: float) -> list[dict[str, Any]]:
        """Return the received messages, after waiting at most `wait_s` seconds for the first one."""
        messages = []
        for ready in wait(self._open, wait_s):
            if isinstance(ready, int):
                data = os.read(ready, _READ_BYTES)
                self._output = (self._output + data)[-_MAX_OUTPUT_BYTES:]
                if not data:
                    self._open.remove(ready)
                continue
            try:
                messages.append(json.loads(self._messages.recv_bytes()))
            except (EOFError, OSError):
                self._open.remove(self._messages)
        return messages

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the child and the processes that it has started, which are in its session."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()

    def reap(self, limit_s: float) -> int | None:
        """End the process, by a kill if it is running, and close its pipes; return its exit code.

        The exit code is None if the process is stuck in the kernel, so that it cannot be killed.
        """
        if not self.has_ended:
            self.kill()
        code: int | None = None
        for _ in range(2):
            try:
                code = self._process.wait(limit_s)
                break
            except subprocess.TimeoutExpired:
                self.kill()
        end = time.monotonic() + limit_s
        printed = self._printed.fileno()
        while printed in self._open and time.monotonic() < end and wait([printed], 0):
            self.receive(0)
        self._messages.close()
        self._printed.close()
        return code


NOT_STARTED = "no process could be started"
"""Prefix of `Answer.problem` if no worker process could be started."""
# Seconds to start an interpreter and import hyrt.
_START_S = 15.0
_END_S = 5.0
# Seconds to collect the stacks of a hanging process.
_STACKS_S = 1.0
# Limit for a worker whose parent has died, in seconds; longer than any item may take.
_ORPHAN_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the worker about one item."""

    messages: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""
    """One-line reason why the item did not finish; empty if it has finished."""

    def values(self, key: str) -> list[Any]:
        return [message[key] for message in self.messages if key in message]

    def first_value(self, key: str) -> Any:
        """Return the first value with this key; None if there is none."""
        return next(iter(self.values(key)), None)


@dataclass(slots=True)
class _PartialAnswer:
    """Messages about an item that have been received so far."""

    messages: list[Mapping[str, Any]] = field(default_factory=list)
    problem: str | None = None
    """Reason why the item failed; None while it is in progress, and empty once it has finished."""


class IsolatedWorker:
    """Worker process that is restarted after it has crashed or hung, and killed at the end of the context.

    Only one thread may call `query`; any thread may call `close`.
    """

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._barred: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._process is not None:
            self._process.reap(_END_S)

    def close(self) -> None:
        """Kill the worker and start no new one. It is killed because drivers may crash or hang at exit."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def query(
        self,
        module: str,
        items: Sequence[str],
        *,
        limit_s: float,
        block_imports: bool = False,
        **arguments: Any,
    ) -> dict[str, Answer]:
        """Return the answer of a module's `answer` function for each item.

        One process answers all items, unless an item crashes or hangs it: then this item's answer has the
        problem, and a new process continues with the next item. `module` has a function `answer(item, report,
        **arguments)`; `module:function` selects another name. The keyword arguments of each call of `report`
        are one message of the answer. Items must be distinct, and `arguments` JSON-serializable. `limit_s` is
        the time limit of each item in seconds (see `HangDetector`). With `block_imports`, items are packages
        that later processes must not import after one has crashed or hung.
        """
        answers: dict[str, Answer] = {}
        while remaining := [item for item in items if item not in answers]:
            request = {
                "module": module,
                "items": remaining,
                "arguments": arguments,
                "barred": self._barred,
                "last_s": BUSY_FACTOR * limit_s + _ORPHAN_S,
            }
            partials: dict[str, _PartialAnswer] = {}
            problem = self._send_request(request, partials, limit_s)
            current = next(
                (item for item in remaining if item not in partials or partials[item].problem is None), None
            )
            if current is not None:
                partials.setdefault(current, _PartialAnswer()).problem = problem
                if block_imports and not problem.startswith(NOT_STARTED):
                    self._barred[current] = problem
            answers |= {
                item: Answer(tuple(partial.messages), partial.problem or "")
                for item, partial in partials.items()
            }
        return answers

    def _send_request(
        self, request: Mapping[str, Any], partials: dict[str, _PartialAnswer], limit_s: float
    ) -> str:
        """Send a request to the worker, started if needed; return why it ended early, otherwise ""."""
        with self._lock:
            if self._closed:
                return "was not checked: it was stopped"
            if self._process is None:
                try:
                    self._process = ChildProcess()
                except OSError as error:
                    # The limit of processes or open files is reached, or the interpreter cannot be executed.
                    return f"{NOT_STARTED} to ask it: {system_error_text(error)}"
            process = self._process
        process.send(request)
        watch = HangDetector(limit_s + _START_S, lambda: read_activity(process.pid))
        ended = 0
        while not process.has_ended:
            for event in process.receive(POLL_INTERVAL_S):
                partial = partials.setdefault(event["item"], _PartialAnswer())
                match event["event"]:
                    case "begun":
                        watch = HangDetector(limit_s, lambda: read_activity(process.pid))
                    case "said":
                        partial.messages.append(event["said"])
                    case "raised":
                        partial.problem = one_line(event["error"]) or "raises an error without a message"
                    case "done":
                        partial.problem = ""
                ended += partial.problem is not None
            if ended == len(request["items"]):
                return ""
            hangs = watch.check()
            if hangs:
                return self._end(process, hangs)
        return self._end(process)

    def _end(self, process: ChildProcess, hangs: str = "") -> str:
        """Reap a worker that has ended, or kill a worker that hangs; return the reason."""
        if hangs:
            process.signal(signal.SIGUSR1)
            end = time.monotonic() + _STACKS_S
            while time.monotonic() < end and not _crash_location(process.recent_output):
                process.receive(POLL_INTERVAL_S / 5)
        with self._lock:
            self._process = None
        code = process.reap(_END_S)
        return (
            f"{hangs}{_crash_location(process.recent_output)}"
            if hangs
            else _exit_reason(code, process.recent_output)
        )


def _exit_reason(code: int | None, noise: str) -> str:
    """Explain why a process has ended, from its exit code and the end of its output."""
    if code is None:
        return f"did not end within {_END_S:g} s, not even when killed"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (the system ends processes this way when memory runs out)" if name == "SIGKILL" else ""
        return f"crashes with {name}{hint}{_crash_location(noise)}"
    last = next((line for line in reversed(noise.splitlines()) if line.strip()), "")
    return f"ends its process with exit code {code}{': ' if last else ''}{one_line(last)}"


def _crash_location(noise: str) -> str:
    """Return the innermost Python frame in the stacks that faulthandler wrote, as a part of a message."""
    headers = list(re.finditer(r"^(Current thread|Thread) 0x.*$", noise, re.MULTILINE))
    if not headers:
        return ""
    # If no thread is marked as current, the main thread, which does the work, is listed last.
    header = next(
        (header_match for header_match in headers if header_match[1] == "Current thread"), headers[-1]
    )
    frame = re.search(r'^  File "(.+)", line (\d+) in (.+)$', noise[header.end() :], re.MULTILINE)
    return f", at {frame[1]}:{frame[2]} in {frame[3]}" if frame else ""


def answer_requests(pipe: int) -> None:
    """Answer the requests (JSON messages) on the file descriptor `pipe` until the parent closes it.

    One process serves all requests, because importing torch costs more than all checks together. A request
    has `module`, `items`, `arguments`, `barred` (packages that would crash or hang this process too, with
    reasons) and `last_s` (time limit per item in seconds).
    """
    # Processes that this process starts must not keep the pipe open.
    os.set_inheritable(pipe, False)
    # The parent reports a crash, so a core file would only fill the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The parent sends SIGUSR1 to get the stacks of a hanging item. faulthandler's C handler needs no
    # interpreter lock, so it works inside a driver too.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # As in the command line, this must be called before torch is imported.
    prepare_process()
    parent = Connection(pipe)
    with contextlib.suppress(EOFError):
        while True:
            _answer(json.loads(parent.recv_bytes()), parent)


class _ImportBlocker(MetaPathFinder):
    """Import hook that refuses packages that crashed or hung an earlier worker process."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = reasons

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self._reasons:
            raise ImportError(self._reasons[fullname], name=fullname)


def _answer(request: dict[str, Any], parent: Connection) -> None:
    blocker = _ImportBlocker(request["barred"])
    sys.meta_path.insert(0, blocker)
    for item in request["items"]:

        def write(item: str = item, **event: Any) -> None:
            parent.send_bytes(json.dumps({"item": item, **event}).encode())

        # Mark the beginning of this item's output.
        with contextlib.suppress(OSError):
            os.write(2, ITEM_START)
        write(event="begun")
        # This takes effect only if the parent has died, otherwise the parent ends this process much earlier.
        faulthandler.dump_traceback_later(request["last_s"], exit=True)
        try:
            module, _, name = request["module"].partition(":")
            answer = getattr(import_module(module), name or "answer")
            answer(
                item, lambda write=write, **message: write(event="said", said=message), **request["arguments"]
            )
        except BaseException as error:
            # The checked code may raise anything, including SystemExit. The exception is the answer.
            write(event="raised", error=describe_error(error))
        else:
            write(event="done")
        faulthandler.cancel_dump_traceback_later()
    sys.meta_path.remove(blocker)
