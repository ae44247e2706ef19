"""A child process that is asked everything: what crashes or hangs in it does not end the one that asks."""

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
"""How the problem of an answer begins where there was nobody to ask."""
# Starting an interpreter and importing hyrt.
_START_S = 15.0
_END_S = 5.0
# For the stacks of what hangs.
_STACKS_S = 1.0
# Longer than any item may take: what it bounds is a child whose parent has gone.
_ORPHAN_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said about one item."""

    said: tuple[Mapping[str, Any], ...] = ()
    """What it said, in order."""
    problem: str = ""
    """Why it did not come to its end, in one line; empty where it did."""

    def all(self, key: str) -> list[Any]:
        """Everything it said under a key."""
        return [each[key] for each in self.said if key in each]

    def first(self, key: str) -> Any:
        """The first thing it said under a key; None if nothing."""
        return next(iter(self.all(key)), None)


@dataclass(slots=True)
class _Heard:
    """What has come of one item's answer."""

    said: list[Mapping[str, Any]] = field(default_factory=list)
    problem: str | None = None
    """None while it goes on; empty once it has come to its end."""


class Children:
    """A child process, and the next one after each that ends; leaving the context ends it.

    One thread asks; any may close.
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
        """End the child and start no more. It is killed: drivers may crash or hang while it ends."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def ask(
        self, module: str, items: Sequence[str], *, limit_s: float, bar: bool = False, **arguments: Any
    ) -> dict[str, Answer]:
        """Let a module answer about items, in one process as long as none of them ends it.

        Parameters
        ----------
        module
            Has `answer(item, say, **arguments)`, which is called once an item; what it says comes back.
        items
            Distinct; what ends the process is the answer to the item that it was at, and another process goes
            on.
        limit_s
            The seconds that each item may wait; see `hyrt.machine.child_processes.watch.Watch`.
        bar
            Whether items are packages that no later process imports where they have ended one.
        **arguments
            Arguments that JSON can hold.

        Returns
        -------
        An answer for each item.
        """
        answers: dict[str, Answer] = {}
        while left := [item for item in items if item not in answers]:
            request = {
                "module": module,
                "items": left,
                "arguments": arguments,
                "barred": self._barred,
                "last_s": BUSY_TIMES * limit_s + _ORPHAN_S,
            }
            heard: dict[str, _Heard] = {}
            problem = self._converse(request, heard, limit_s)
            at = next((item for item in left if item not in heard or heard[item].problem is None), None)
            if at is not None:
                heard.setdefault(at, _Heard()).problem = problem
                if bar and not problem.startswith(NOT_STARTED):
                    self._barred[at] = problem
            answers |= {item: Answer(tuple(each.said), each.problem or "") for item, each in heard.items()}
        return answers

    def _converse(self, request: Mapping[str, Any], heard: dict[str, _Heard], limit_s: float) -> str:
        """Put one request to the child, started if needed; returns what ended it before its last answer."""
        with self._lock:
            if self._closed:
                return "was not checked: it was stopped"
            if self._process is None:
                try:
                    self._process = Process()
                except OSError as error:
                    # No more processes or files are allowed, or the interpreter may not be started.
                    return f"{NOT_STARTED} to ask it: {told_of_system(error)}"
            process = self._process
        process.send(request)
        watch = Watch(limit_s + _START_S, lambda: activity_of(process.pid))
        ended = 0
        while not process.has_ended:
            for event in process.receive(LOOK_S):
                each = heard.setdefault(event["item"], _Heard())
                match event["event"]:
                    case "begun":
                        watch = Watch(limit_s, lambda: activity_of(process.pid))
                    case "said":
                        each.said.append(event["said"])
                    case "raised":
                        each.problem = one_line(event["error"]) or "raises an error without a message"
                    case "done":
                        each.problem = ""
                ended += each.problem is not None
            if ended == len(request["items"]):
                return ""
            hangs = watch.look()
            if hangs:
                return self._end(process, hangs)
        return self._end(process)

    def _end(self, process: Process, hangs: str = "") -> str:
        """Take leave of a child that has ended, or hangs; returns why."""
        if hangs:
            process.signal(signal.SIGUSR1)
            end = time.monotonic() + _STACKS_S
            while time.monotonic() < end and not _place(process.noise):
                process.receive(LOOK_S / 5)
        with self._lock:
            self._process = None
        code = process.end(_END_S)
        return f"{hangs}{_place(process.noise)}" if hangs else _why_ended(code, process.noise)


def _why_ended(code: int | None, noise: str) -> str:
    """What ended a process, from its exit code and what it left on standard error."""
    if code is None:
        return f"did not end within {_END_S:g} s, not even when killed"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (the system ends processes this way when memory runs out)" if name == "SIGKILL" else ""
        return f"crashes with {name}{hint}{_place(noise)}"
    last = next((line for line in reversed(noise.splitlines()) if line.strip()), "")
    return f"ends its process with exit code {code}{': ' if last else ''}{one_line(last)}"


def _place(noise: str) -> str:
    """The innermost Python frame of the stacks that faulthandler wrote."""
    headers = list(re.finditer(r"^(Current thread|Thread) 0x.*$", noise, re.MULTILINE))
    if not headers:
        return ""
    # The main thread, which does the work, comes last where none is marked as current.
    header = next((each for each in headers if each[1] == "Current thread"), headers[-1])
    frame = re.search(r'^  File "(.+)", line (\d+) in (.+)$', noise[header.end() :], re.MULTILINE)
    return f", at {frame[1]}:{frame[2]} in {frame[3]}" if frame else ""
