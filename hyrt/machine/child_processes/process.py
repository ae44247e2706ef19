"""One child process: its message pipe, and the end of its printed output."""

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
    # Drivers may crash or hang at interpreter exit; all answers have been sent by then.
    "os._exit(0)\n"
)
BEGIN = b"\x1e"
"""Marker that a child prints when it starts an item."""
_READ_BYTES = 1 << 16
_MAX_OUTPUT_BYTES = 1 << 16


class Process:
    """A started child process; call `end` to reap it."""

    def __init__(self) -> None:
        # Drivers may print to standard output and read standard input, so messages use a separate pipe.
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
    def noise(self) -> str:
        """The end of the child's output since it started the current item."""
        return self._output.rpartition(BEGIN)[2].decode(errors="replace")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a child that has ended is detected by `has_ended`."""
        try:
            self._messages.send_bytes(json.dumps(message).encode())
        except BrokenPipeError:
            pass

    def receive(self, wait_s: float) -> list[dict[str, Any]]:
        """Return the received messages, after waiting at most `wait_s` for input."""
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
        """Kill the child and its own children; the child leads a session."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()

    def end(self, limit_s: float) -> int | None:
        """Wait for the process to end (killing it if necessary) and close its pipes.

        Returns
        -------
        Exit code; None if the process is stuck in the kernel and survives even a kill.
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
