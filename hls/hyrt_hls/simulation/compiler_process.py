"""Runs the compiler so that no compiler process outlives the waiting process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_LIMIT_S = 600.0

# g++ starts child processes, which survive if this process calls os._exit or is killed. In that case the pipe
# is closed: the watcher then sends SIGTERM to the process group and deletes the partial output. SIGTERM lets
# g++ remove its temporary files. The watcher ignores SIGTERM, and is killed when the compiler exits normally.
_WATCH_SCRIPT = """
exec 3<&0 </dev/null
(trap '' TERM; read -r _ <&3; kill -TERM 0; test -z "$0" || rm -f -- "$0") >/dev/null 2>&1 &
"$@" 3<&-
status=$?
exec 2>/dev/null
kill -KILL $!
exit $status
"""


def run_compiler(command: Sequence[str], output: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output.

    Parameters
    ----------
    command
        Path of a program, and its arguments.
    output
        Output file of the command; deleted if this process ends first.

    Raises
    ------
    ValueError
        If the command takes too long, or there is no shell to run it.
    """
    read_end, write_end = os.pipe()
    try:
        # In a separate session, because Ctrl-C should reach the waiting process only, and must not look like
        # a compiler error.
        return subprocess.run(
            ["/bin/sh", "-c", _WATCH_SCRIPT, "" if output is None else str(output), *command],
            stdin=read_end,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"g++ took more than {_LIMIT_S:.0f} s for {' '.join(command)}: try a smaller design"
        ) from error
    except OSError as error:
        raise ValueError(f"{command[0]} cannot be run: {error.strerror}") from error
    finally:
        os.close(read_end)
        os.close(write_end)
