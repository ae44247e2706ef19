"""What is said when the process ends although nobody wanted it to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# A line says that all went well; the end of the stream without one, that the writer is no more.
_LISTEN = 'read -r over || printf "%s\\n" "$1" >&2'


@contextmanager
def last_words(text: str) -> Iterator[None]:
    """Print a line on standard error if the process ends within the block.

    A library may end it in ways that no handler sees: `_exit`, a signal, a crash in a destructor. So a shell
    waits at the other end of a pipe, which takes a few milliseconds; a process that is asked in advance would
    have to import everything a second time.
    """
    try:
        listener = subprocess.Popen(
            ["sh", "-c", _LISTEN, "sh", text], stdin=subprocess.PIPE, start_new_session=True
        )
    except OSError:  # No shell: the words are a courtesy.
        yield
        return
    try:
        yield
    finally:
        listener.communicate(b"\n")
