"""Isolated worker process: code that may crash or hang runs in a child process and cannot end the parent."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from hyrt.errors import one_line, told_of_system
from hyrt.machine.child_processes.process import Process
from hyrt.machine.child_processes.watch import BUSY_TIMES, LOOK_S, Watch, activity_of

NOT_STARTED = "no process could be started"
"""Prefix of an answer's problem if no worker process could be started."""
# Time to start an interpreter and import hyrt.
_START_S = 15.0
_END_S = 5.0
# Time to collect the stacks of a hanging process.
_STACKS_S = 1.0
# Longer than any item may take: it only bounds a worker whose parent has died.
_ORPHAN_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the worker about one item."""

    said: tuple[Mapping[str, Any], ...] = ()
    """Messages of the item, in order."""
    problem: str = ""
    """One-line reason why the item did not finish; empty if it finished."""

    def all(self, key: str) -> list[Any]:
        """Return the values of all messages with this key."""
        return [message[key] for message in self.said if key in message]

    def first(self, key: str) -> Any:
        """Return the first value with this key; None if there is none."""
        return next(iter(self.all(key)), None)


@dataclass(slots=True)
class _PartialAnswer:
    """The part of an item's answer received so far."""

    said: list[Mapping[str, Any]] = field(default_factory=list)
    problem: str | None = None
    """None while the item is in progress; empty once it has finished."""


class Children:
    """Worker process that is restarted after a crash or hang; leaving the context ends the process.

    Only one thread may call `ask`; any thread may call `close`.
    """

    def __init__(self) -> None:
        self._process: Process | None = None
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
            self._process.end(_END_S)

    def close(self) -> None:
        """Kill the worker and start no new one. It is killed because drivers may crash or hang at exit."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def ask(
        self, module: str, items: Sequence[str], *, limit_s: float, bar: bool = False, **arguments: Any
    ) -> dict[str, Answer]:
        """Run a module's `answer` function for each item, in one process as long as no item ends the process.

        Parameters
        ----------
        module
            Module with a function `answer(item, report, **arguments)`, or `module:function` for another name;
            called once per item. The keyword arguments of each call of `report` are one message of the answer.
        items
            Distinct items. An item that crashes or hangs the process is answered with that problem, and a new
            process continues with the next item.
        limit_s
            Time limit of each item in seconds; see `hyrt.machine.child_processes.watch.Watch`.
        bar
            Whether items are packages that later processes must not import after one has crashed or hung.
        **arguments
            Arguments of `answer`; must be JSON-serialisable.

        Returns
        -------
        The answer of each item.
        """
        answers: dict[str, Answer] = {}
        while remaining := [item for item in items if item not in answers]:
            request = {
                "module": module,
                "items": remaining,
                "arguments": arguments,
                "barred": self._barred,
                "last_s": BUSY_TIMES * limit_s + _ORPHAN_S,
            }
            partials: dict[str, _PartialAnswer] = {}
            problem = self._send_request(request, partials, limit_s)
            current = next(
                (item for item in remaining if item not in partials or partials[item].problem is None), None
            )
            if current is not None:
                partials.setdefault(current, _PartialAnswer()).problem = problem
                if bar and not problem.startswith(NOT_STARTED):
                    self._barred[current] = problem
            answers |= {
                item: Answer(tuple(partial.said), partial.problem or "") for item, partial in partials.items()
            }
        return answers

    def _send_request(
        self, request: Mapping[str, Any], partials: dict[str, _PartialAnswer], limit_s: float
    ) -> str:
        """Send one request to the worker (started if needed); return why it ended early, or an empty
        string.
        """
        with self._lock:
            if self._closed:
                return "was not checked: it was stopped"
            if self._process is None:
                try:
                    self._process = Process()
                except OSError as error:
                    # The limit of processes or open files is reached, or the interpreter may not be executed.
                    return f"{NOT_STARTED} to ask it: {told_of_system(error)}"
            process = self._process
        process.send(request)
        watch = Watch(limit_s + _START_S, lambda: activity_of(process.pid))
        ended = 0
        while not process.has_ended:
            for event in process.receive(LOOK_S):
                partial = partials.setdefault(event["item"], _PartialAnswer())
                match event["event"]:
                    case "begun":
                        watch = Watch(limit_s, lambda: activity_of(process.pid))
                    case "said":
                        partial.said.append(event["said"])
                    case "raised":
                        partial.problem = one_line(event["error"]) or "raises an error without a message"
                    case "done":
                        partial.problem = ""
                ended += partial.problem is not None
            if ended == len(request["items"]):
                return ""
            hangs = watch.look()
            if hangs:
                return self._end(process, hangs)
        return self._end(process)

    def _end(self, process: Process, hangs: str = "") -> str:
        """Reap a worker that has ended, or kill one that hangs; return the reason."""
        if hangs:
            process.signal(signal.SIGUSR1)
            end = time.monotonic() + _STACKS_S
            while time.monotonic() < end and not _crash_location(process.noise):
                process.receive(LOOK_S / 5)
        with self._lock:
            self._process = None
        code = process.end(_END_S)
        return f"{hangs}{_crash_location(process.noise)}" if hangs else _exit_reason(code, process.noise)


def _exit_reason(code: int | None, noise: str) -> str:
    """Explain why a process ended, from its exit code and the end of its output."""
    if code is None:
        return f"did not end within {_END_S:g} s, not even when killed"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (the system ends processes this way when memory runs out)" if name == "SIGKILL" else ""
        return f"crashes with {name}{hint}{_crash_location(noise)}"
    last = next((line for line in reversed(noise.splitlines()) if line.strip()), "")
    return f"ends its process with exit code {code}{': ' if last else ''}{one_line(last)}"


def _crash_location(noise: str) -> str:
    """Return the innermost Python frame of the stacks that faulthandler wrote, as message text."""
    headers = list(re.finditer(r"^(Current thread|Thread) 0x.*$", noise, re.MULTILINE))
    if not headers:
        return ""
    # The main thread, which does the work, is listed last if no thread is marked as current.
    header = next(
        (header_match for header_match in headers if header_match[1] == "Current thread"), headers[-1]
    )
    frame = re.search(r'^  File "(.+)", line (\d+) in (.+)$', noise[header.end() :], re.MULTILINE)
    return f", at {frame[1]}:{frame[2]} in {frame[3]}" if frame else ""
