"""Child processes with a time limit: a crash or a hang of what they check is an answer, not the end of the doctor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from hyrt.doctor.finding import one_line

# Standard output is kept for answers before anything is imported: drivers print where they like.
_START = (
    "import json, os, sys\n"
    "results = os.fdopen(os.dup(1), 'w')\n"
    "os.dup2(2, 1)\n"
    "request = json.loads(sys.argv[1])\n"
    "sys.path[:] = request['path']\n"
    "from hyrt.doctor.children.answering import answer_all\n"
    "answer_all(results, request)\n"
    # Drivers may crash or hang while the interpreter ends; the answers are complete.
    "os._exit(0)\n"
)
# Starting an interpreter and importing hyrt, on a machine that is busy.
_START_S = 15.0
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said about one item.

    Parameters
    ----------
    said
        What it said, in order.
    problem
        Why it did not come to its end, in one line; empty where it did.
    """

    said: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""

    def all(self, key: str) -> list[Any]:
        """Everything it said under a key."""
        return [each[key] for each in self.said if key in each]

    def first(self, key: str) -> Any:
        """The first thing it said under a key; None if nothing."""
        return next(iter(self.all(key)), None)


class Children:
    """The child processes of one diagnosis; leaving the context ends those that still run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the children that still run, and start no more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _kill(process)

    def ask(
        self, module: str, items: Sequence[str], *, limit_s: float, **arguments: Any
    ) -> dict[str, Answer]:
        """Ask a module of `hyrt.doctor.children` about items, in one process as long as none of them ends it.

        Parameters
        ----------
        module
            Its name.
        items
            Distinct; what ends the process is the answer to the item that it was at, and another process goes on.
        limit_s
            For each item.
        **arguments
            That JSON can hold.

        Returns
        -------
        An answer for each item.
        """
        answers: dict[str, Answer] = {}
        left = list(items)
        while left:
            request = {
                "module": f"hyrt.doctor.children.{module}",
                "items": left,
                "limit_s": limit_s,
                "arguments": arguments,
                "path": sys.path,
            }
            found, problem = self._run(request, limit_s * len(left) + _START_S)
            for item in left:
                if item not in found or found[item].problem == _OPEN:
                    said = found[item].said if item in found else ()
                    found[item] = Answer(said, problem)
                    break
            answers |= found
            left = [item for item in left if item not in answers]
        return answers

    def _run(self, request: Mapping[str, Any], limit_s: float) -> tuple[dict[str, Answer], str]:
        """One child: its answers, and why it ended where that was before its last item."""
        with self._lock:
            if self._closed:
                return {}, "was not asked: the doctor was stopped"
            process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-c", _START, json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process)
        out, noise, in_time = b"", b"", True
        try:
            out, noise = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            in_time = False
            _kill(process)
            try:
                out, noise = process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired as stuck:
                # Stuck in the kernel: not even a kill ends it.
                out, noise = stuck.output or b"", stuck.stderr or b""
        finally:
            with self._lock:
                self._running.discard(process)
        text = noise.decode(errors="replace")
        problem = (
            _why_ended(process.returncode, text, request["limit_s"])
            if in_time
            else f"did not end within {limit_s:g} s"
        )
        return _parse(out), problem


_OPEN = "has not ended"


def _parse(out: bytes) -> dict[str, Answer]:
    """Answers by item; of one that did not come to its end the problem is `_OPEN`."""
    answers: dict[str, Answer] = {}
    for line in out.decode(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # Torn: the process ended in the middle of it.
        item = event["item"]
        said = answers[item].said if item in answers else ()
        match event["event"]:
            case "begun":
                answers[item] = Answer((), _OPEN)
            case "said":
                answers[item] = Answer((*said, event["said"]), _OPEN)
            case "raised":
                answers[item] = Answer(said, one_line(event["error"]))
            case "done":
                answers[item] = Answer(said)
    return answers


def _why_ended(code: int | None, noise: str, limit_s: float) -> str:
    """What ended a process, from its exit code and what it left on standard error."""
    at = _place(noise)
    if re.search(r"^Timeout \(\S+\)!", noise, re.MULTILINE):
        return f"hangs: no answer within {limit_s:g} s{at}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (the system ends processes so when memory runs out)" if name == "SIGKILL" else ""
        return f"crashes with {name}{hint}{at}"
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


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a child and what it has started; its session is its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
