"""Runs the compiler so that none of its processes outlives whoever waits for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_LIMIT_S = 600.0

# g++ starts processes of its own, and a process that leaves by os._exit or is killed ends none of them. It
# closes its end of the pipe, however: all of the group are then told to end, and what they had written of the
# file goes. SIGTERM, since g++ removes its temporary files at it; the one that waits ignores it, and is
# killed where the compiler ended by itself.
_WATCHED = """
exec 3<&0 </dev/null
(trap '' TERM; read -r _ <&3; kill -TERM 0; test -z "$0" || rm -f -- "$0") >/dev/null 2>&1 &
"$@" 3<&-
status=$?
exec 2>/dev/null
kill -KILL $!
exit $status
"""


def run_compiler(command: Sequence[str], output: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what it said.

    Parameters
    ----------
    command
        A program by its path, and its arguments.
    output
        What it writes, which is removed where this process ends before it.

    Raises
    ------
    ValueError
        It takes too long, or there is no shell to run it.
    """
    watched, held = os.pipe()
    try:
        # In a session of its own: Ctrl-C is for whoever waits for it, and must not look like a compiler that
        # fails.
        return subprocess.run(
            ["/bin/sh", "-c", _WATCHED, "" if output is None else str(output), *command],
            stdin=watched,
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
        os.close(watched)
        os.close(held)
