"""One child process: lines to it, lines from it, and the end of what it has printed on standard error."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time

# The pipes of answers and requests are moved away before anything is imported: drivers print and read where
# they like.
_START = (
    "import json, os, sys\n"
    "requests, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), 'w')\n"
    "os.dup2(os.open(os.devnull, os.O_RDONLY), 0)\n"
    "os.dup2(2, 1)\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from hyrt.doctor.children.answering import answer_requests\n"
    "answer_requests(requests, results)\n"
    # Drivers may crash or hang while the interpreter ends; the answers are complete.
    "os._exit(0)\n"
)
BEGIN = b"\x1e"
"""What a child writes to standard error when it begins with an item."""
_PIECE = 1 << 16
_NOISE = 1 << 16


class Process:
    """A started child; `end` it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._requests = self._process.stdin
        self._answers, self._errors = self._process.stdout, self._process.stderr
        self._selector = selectors.DefaultSelector()
        for stream in (self._answers, self._errors):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        self._line = b""
        self._noise = b""
        self.has_ended = False
        """Whether it answers no more."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def noise(self) -> str:
        """The end of what it has printed since it began with its item."""
        return self._noise.rpartition(BEGIN)[2].decode(errors="replace")

    def send(self, line: str) -> None:
        """Send it a line; one that has ended takes none, and says so by ending."""
        try:
            self._requests.write(line.encode() + b"\n")
        except BrokenPipeError:
            pass

    def lines(self, wait_s: float) -> list[bytes]:
        """Whole lines that it has sent, after waiting for something to read at most so long."""
        found: list[bytes] = []
        for key, _ in self._selector.select(wait_s):
            data = os.read(key.fd, _PIECE)
            if not data:
                self._selector.unregister(key.fileobj)
            if key.fileobj is self._errors:
                self._noise = (self._noise + data)[-_NOISE:]
                continue
            self.has_ended = self.has_ended or not data
            *whole, self._line = (self._line + data).split(b"\n")
            found += whole
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
        while (
            self._errors in self._selector.get_map() and time.monotonic() < end and self._selector.select(0)
        ):
            self.lines(0)
        self._selector.close()
        for stream in (self._requests, self._answers, self._errors):
            stream.close()
        return code
