"""Names the device inside whose call the process ends, where nothing in the process can say it any more."""

from __future__ import annotations

import mmap
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hyrt.device import Device
from hyrt.device.calls import ended_inside
from hyrt.observe.events import Notice
from hyrt.observe.hook import Hook, Site

T = TypeVar("T")

# The calls that a trainer's own threads make; of each trainer one of a kind at a time. Those outside the
# pipeline are named where they are made, in `hyrt.device.calls`.
_STAGES = ("transfer", "propagate", "update")
_SLOT = 256
# The end of the stream says that the process has ended; what the file then holds are the calls it was in. It
# is opened by its number: dash duplicates descriptors of one digit only.
_LISTEN = 'read -r over; tr -d "\\000" <"/dev/fd/$1" >&2'


class LastCalls(Hook):
    """Says on standard error in which calls of devices the process was when it ended, however that was.

    A driver may end it in ways that no handler sees: `abort`, `_exit`, a signal. So each call stands in a
    file that a shell prints when the process is no more. To write it there takes about a microsecond.

    Parameters
    ----------
    watched
        Numbers of the trainers to watch.
    """

    def __init__(self, watched: Sequence[int]) -> None:
        places = [(trainer, stage) for trainer in watched for stage in _STAGES]
        self._slots = {place: number * _SLOT for number, place in enumerate(places)}
        self._calls: mmap.mmap | None = None
        self._listener: subprocess.Popen[bytes] | None = None

    def begin(self, devices: Sequence[Device], steps: range) -> Notice | None:
        try:
            with tempfile.TemporaryFile() as file:
                file.truncate(len(self._slots) * _SLOT)
                number = file.fileno()
                self._listener = subprocess.Popen(
                    ["sh", "-c", _LISTEN, "sh", str(number)],
                    stdin=subprocess.PIPE,
                    pass_fds=[number],
                    start_new_session=True,
                )
                self._calls = mmap.mmap(number, len(self._slots) * _SLOT)
        except OSError:  # No shell, or no room: the words are a courtesy.
            self._close()
        return None

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        at, calls = self._slots.get((site.trainer, stage)), self._calls
        if at is None or calls is None:
            return work()
        text = ended_inside(f"{stage} of {site.place} at step {site.step}")
        calls[at : at + _SLOT] = f"{text}\n".encode()[-_SLOT:].ljust(_SLOT, b"\0")
        try:
            return work()
        finally:
            calls[at : at + _SLOT] = bytes(_SLOT)

    def end(self, summary: dict[str, Any]) -> Notice | None:
        self._close()
        return None

    def end_failed(self, error: BaseException, summary: dict[str, Any]) -> None:
        self._close()

    def leave(self) -> None:
        # No driver has ended the process.
        self._close()

    def _close(self) -> None:
        """Say nothing from now on; a thread that hangs in a call may still write to the file."""
        if self._calls is not None:
            self._calls[:] = bytes(len(self._calls))
        self._calls = None
        if self._listener is not None:
            self._listener.communicate()
        self._listener = None
