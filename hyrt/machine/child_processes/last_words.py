"""Error message for a process that ends unexpectedly, even without Python's exit handlers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# A line from the writer means success; end of file without a line means that the writer has died.
_MONITOR_SCRIPT = 'read -r over || printf "%s\\n" "$1" >&2'


@contextmanager
def last_words(text: str) -> Iterator[None]:
    """Print a line on standard error if the process ends within the block.

    A library may end the process in ways that no handler sees: `_exit`, a signal, a crash in a destructor. A
    shell at the other end of a pipe detects all of them and starts in a few milliseconds; a second Python
    process would have to repeat all imports.
    """
    try:
        monitor = subprocess.Popen(
            ["sh", "-c", _MONITOR_SCRIPT, "sh", text], stdin=subprocess.PIPE, start_new_session=True
        )
    except OSError:  # No shell: the message is optional.
        yield
        return
    try:
        yield
    finally:
        monitor.communicate(b"\n")
