"""One child process: messages to it, messages from it, and the end of what it has printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

_START = (
    "import json, os, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from hyrt.machine.child_processes.answering import answer_requests\n"
    "answer_requests(int(sys.argv[1]))\n"
    # Drivers may crash or hang while the interpreter ends; the answers are complete.
    "os._exit(0)\n"
)
BEGIN = b"\x1e"
"""What a child prints when it begins with an item."""
_PIECE = 1 << 16
_NOISE = 1 << 16


class Process:
    """A started child; `end` it."""

    def __init__(self) -> None:
        # Drivers print and read where they like: messages have a pipe of their own.
        self._messages, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-X", "faulthandler", "-c", _START),
                    *(str(theirs.fileno()), json.dumps(sys.path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        assert self._process.stdout
        self._printed = self._process.stdout
        self._open: list[Connection | int] = [self._messages, self._printed.fileno()]
        self._noise = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it answers no more."""
        return self._messages not in self._open

    @property
    def noise(self) -> str:
        """The end of what it has printed since it began with its item."""
        return self._noise.rpartition(BEGIN)[2].decode(errors="replace")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send it a message; one that has ended takes none, and says so by ending."""
        try:
            self._messages.send_bytes(json.dumps(message).encode())
        except BrokenPipeError:
            pass

    def receive(self, wait_s: float) -> list[dict[str, Any]]:
        """Messages that it has sent, after waiting for something to read at most so long."""
        found = []
        for ready in wait(self._open, wait_s):
            if isinstance(ready, int):
                data = os.read(ready, _PIECE)
                self._noise = (self._noise + data)[-_NOISE:]
                if not data:
                    self._open.remove(ready)
                continue
            try:
                found.append(json.loads(self._messages.recv_bytes()))
            except (EOFError, OSError):
                self._open.remove(self._messages)
        return found

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it and what it has started; its session is its own."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()

    def end(self, limit_s: float) -> int | None:
        """Wait for a process that has ended or shall, and close what belongs to it.

        Returns
        -------
        Its exit code; None where it is stuck in the kernel and not even a kill has ended it.
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
