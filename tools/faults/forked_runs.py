"""`hyrt` in separate processes without import time: a server imports everything once and forks.

A forked process has a separate exit code, signals, session and interpreter shutdown, like a started process.
The server starts no thread and touches no device before it forks. Runs that only have to succeed can be
called instead, in a second server that does not fork, which saves a third of the time.

    with ForkedRuns() as runs:
        run = runs.start(["run", "--data", "synthetic:tiny"], cwd=folder, HYRT_FAULT="...")
        code = runs.wait(run, 30)
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# File to which a process writes the names of its remaining threads at exit.
THREADS_LEFT = "HYRT_TEST_THREADS_LEFT"
QUICK = "HYRT_TEST_QUICK_END"
# Set to make read-only files read-only for root as well.
NO_OVERRIDE = "HYRT_TEST_NO_OVERRIDE"
# Number of processors that a server and its runs may use.
PROCESSORS = "HYRT_TEST_PROCESSORS"
_PAUSE_S = 0.2
# Time limit for a thread that has been signalled to end.
_ENDING_S = 2.0
_FILES = ("out", "err", "threads")
# Modules that every run imports, directly or indirectly.
IMPORTED = (
    *("hyrt.cli.commands", "hyrt.cli.run_session", "hyrt.config.command_line"),
    "hyrt.predict.choose_devices",
    *(
        "hyrt.sampling.settings.neighbor_settings",
        "hyrt.nn.models.graphsage",
        "hyrt.objective.classification",
    ),
    *("hyrt.balance.registry", "hyrt.report.html.page", "hyrt.report.html.chart", "hyrt_devices.cpu"),
    "torch.optim",
)


@dataclass(frozen=True)
class ForkedRun:
    """A started process; its output goes to files in its folder."""

    pid: int
    output: Path
    errors: Path
    threads_left: Path


class ForkedRuns:
    """Starts runs and waits for them.

    Parameters
    ----------
    **environment
        Environment variables of all runs.
    """

    def __init__(self, **environment: str) -> None:
        self._environment = {**os.environ, "COLUMNS": "100", **environment}
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.close()
            server.wait(10)
            server.stdout.close()

    def start(
        self,
        words: list[str],
        cwd: Path,
        *,
        is_quick: bool = False,
        apart: Path | None = None,
        **environment: str,
    ) -> ForkedRun:
        """Start `hyrt` with these arguments in a new session.

        Parameters
        ----------
        words
            Arguments of `hyrt`.
        cwd
            Working directory.
        is_quick
            Whether to skip the interpreter's shutdown.
        apart
            Folder for output and temporary files; `cwd` if None.
        **environment
            Additional environment variables.
        """
        if is_quick:
            environment[QUICK] = "1"
        request = self._request(words, cwd, environment, apart)
        return self._run_of(request, self._send_request("forks", do="start", **request)["pid"])

    def call(self, words: list[str], cwd: Path, **environment: str) -> tuple[int, ForkedRun]:
        """Run `hyrt` with these arguments in the shared process; return the exit code and the run."""
        request = self._request(words, cwd, environment)
        answer = self._send_request("calls", do="call", **request)
        return answer["code"], self._run_of(request, answer["pid"])

    def complete(self, words: list[str], cwd: Path, timeout_s: float) -> None:
        """Run `hyrt` with these arguments in a separate process and wait for it.

        Raises
        ------
        RuntimeError
            If its exit code is not 0; with its error output.
        """
        run = self.start(words, cwd)
        code = self.wait(run, timeout_s)
        if code != 0:
            raise RuntimeError(f"hyrt {' '.join(words)} ended with {code}: {run.errors.read_text()}")

    def _request(
        self, words: list[str], cwd: Path, environment: dict[str, str], apart: Path | None = None
    ) -> dict[str, Any]:
        self._count += 1
        folder = apart or cwd
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        paths = {name: str(folder / f"{self._count}.{name}") for name in _FILES}
        for name in ("out", "err"):
            Path(paths[name]).touch()
        environment = {**environment, "TMPDIR": str(temporary), THREADS_LEFT: paths["threads"]}
        return {"words": words, "cwd": str(cwd), "environment": environment, **paths}

    def _run_of(self, request: dict[str, Any], pid: int) -> ForkedRun:
        return ForkedRun(pid, *(Path(request[name]) for name in _FILES))

    def wait(self, run: ForkedRun, timeout_s: float) -> int | None:
        """Return the exit code (negative for a signal), or None if the process is still running."""
        code: int | None = self._send_request("forks", do="wait", pid=run.pid, timeout_s=timeout_s)["code"]
        return code

    def _send_request(self, name: str, **request: Any) -> dict[str, Any]:
        if name not in self._servers:
            self._servers[name] = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
            )
        server = self._servers[name]
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            # The next request starts a new server.
            del self._servers[name]
            raise RuntimeError(f"the server of {name} has ended ({server.wait(10)})")
        answer: dict[str, Any] = json.loads(line)
        return answer


def session_processes(session: int) -> list[int]:
    """Return the running processes of a session."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                pids.append(int(entry.name))
    return pids


def _serve() -> list[str]:
    """Answer requests until the pipe is closed; in a forked process, return the arguments to run with."""
    replies = os.fdopen(os.dup(1), "w")
    alive: set[int] = set()
    while line := sys.stdin.readline():
        request = json.loads(line)
        answer: dict[str, Any] = {}
        match request.pop("do"):
            case "start":
                pid = os.fork()
                if pid == 0:
                    replies.close()
                    return _become(**request)
                answer["pid"] = pid
                alive.add(pid)
            case "call":
                before = dict(os.environ)
                _become(**request, is_separate=False)
                answer = {"code": _call(request["words"]), "pid": os.getpid()}
                os.environ.clear()
                os.environ.update(before)
            case "wait":
                answer["code"] = _wait(request["pid"], request["timeout_s"])
                if answer["code"] is not None:
                    alive.discard(request["pid"])
        try:
            replies.write(json.dumps(answer) + "\n")
            replies.flush()
        except BrokenPipeError:
            # The client was killed.
            break
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _wait(pid: int, timeout_s: float) -> int | None:
    # Do not count time in which the machine, or all of these processes, were paused.
    waited_s, before = 0.0, time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        waited_s += min(now - before, _PAUSE_S)
        before = now
        if waited_s > timeout_s:
            return None
        time.sleep(0.003)


def _become(
    words: list[str],
    cwd: str,
    environment: dict[str, str],
    out: str,
    err: str,
    threads: str,
    is_separate: bool = True,
) -> list[str]:
    import tempfile

    if is_separate:
        os.setsid()
    os.chdir(cwd)
    os.environ.update(environment)
    # A fresh interpreter inserts the PYTHONPATH entries at this position.
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path]
    tempfile.tempdir = None
    for number, path in enumerate((os.devnull, out, err)):
        if number == 0 and not is_separate:
            continue
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    if NO_OVERRIDE in environment:
        _drop_override()
    return words


def _drop_override() -> None:
    """Give up the right to write files against their mode.

    Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; see capset(2).
    """
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if system.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~0b110
    if system.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _run(words: list[str]) -> None:
    from polled_stops import count_polls

    from hyrt.cli import main

    sys.argv = [str(Path(sys.executable).with_name("hyrt")), *words]
    # If a thread remains, the command ends its process itself, after the functions registered here.
    atexit.register(_write_threads_left)
    try:
        with count_polls():
            main()
    finally:
        _write_threads_left()
        atexit.unregister(_write_threads_left)


def _write_threads_left() -> None:
    Path(os.environ[THREADS_LEFT]).write_text("\n".join(_threads_left()))


def _threads_left() -> list[str]:
    """Return the names of threads that do not end within a while.

    A library may have signalled a thread to end without waiting for it; multiprocessing queues do.
    """
    end = time.monotonic() + _ENDING_S
    while True:
        left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        if not left or time.monotonic() > end:
            return left
        time.sleep(_ENDING_S / 100)


def _call(words: list[str]) -> int:
    try:
        _run(words)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    from hyrt.runtime.process_setup import prepare_process

    if PROCESSORS in os.environ:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ[PROCESSORS])])
    prepare_process()
    for name in IMPORTED:
        import_module(name)
    # Otherwise a forked process copies every page that the interpreter visits at shutdown.
    gc.freeze()
    words = _serve()
    if QUICK in os.environ:
        code = _call(words)
        atexit._run_exitfuncs()
        os._exit(code)
    _run(words)
