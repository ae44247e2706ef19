"""Exceptions for users of hyrt: each message names the problem, its location and the remedy.

The command line prints the message as one line and exits with `exit_code`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(SystemExit):
    """A signal ends the process; the interrupted work has not failed."""

    @classmethod
    def handle_signal(cls, number: int, frame: FrameType | None) -> NoReturn:
        """Signal handler that exits with 128 + the signal's number."""
        raise cls(128 + number)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed. In the command line, any other KeyboardInterrupt was raised without Ctrl-C."""

    @classmethod
    def handle_signal(cls, number: int, frame: FrameType | None) -> NoReturn:
        """Signal handler that raises this exception."""
        raise cls


class StepInterrupted(BaseException):
    """A run is stopped within a step whose partial work has been saved, which is not a failure."""


class HyrtError(Exception):
    """Base class of all errors that users may want to catch."""

    exit_code = 1
    is_multiline = False
    """Whether the message is a report of several lines."""
    peers_wait = False
    """Whether other ranks, if a launcher has started any, wait for this rank to join."""

    def __str__(self) -> str:
        """Return the message in one line, unless it is a report; file names may contain line breaks."""
        text = super().__str__()
        return "\n".join(printable(line) for line in (text.split("\n") if self.is_multiline else [text]))


class DataError(HyrtError):
    """A dataset violates its schema: the message names file, key and first bad position."""

    exit_code = 2


class DataWarning(UserWarning):
    """A dataset contains data that is ignored, or nothing to learn."""


class SettingWarning(UserWarning):
    """A setting has no effect, or is given under its former name."""


class MachineWarning(UserWarning):
    """The state of the machine makes hyrt slower than necessary."""


class RunWarning(UserWarning):
    """A warning of a run that continues, for runs without an event listener."""


_PACKAGES = {"hyrt", "hyrt_devices", "hyrt_perfmodel", "hyrt_hls"}
_LIBRARIES = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def _is_hyrt_frame(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES


def is_user_frame(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code, that is, neither hyrt nor an installed library."""
    return not _is_hyrt_frame(frame) and not frame.f_code.co_filename.startswith(("<frozen", *_LIBRARIES))


def user_warner(category: type[Warning]) -> Callable[[str], None]:
    """Return a function that warns at the line of user code that is calling hyrt now.

    Any thread may call the function. If only libraries call hyrt, warnings refer to the innermost library
    line.
    """
    frame: FrameType | None = sys._getframe(1)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    callers = [frame for frame in frames if not _is_hyrt_frame(frame)] or frames
    caller = next((frame for frame in callers if is_user_frame(frame)), callers[0])
    location, names = (caller.f_code.co_filename, caller.f_lineno), caller.f_globals

    def warn(text: str) -> None:
        registry = names.setdefault("__warningregistry__", {})
        warnings.warn_explicit(printable(text), category, *location, names.get("__name__"), registry)

    return warn


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of user code that is calling hyrt."""
    user_warner(category)(text)


class DataWriteError(DataError):
    """A dataset could not be written: the disk is full or read-only."""

    exit_code = 1


class ConfigError(HyrtError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 2


class ArgumentError(HyrtError, ValueError):
    """An argument of a call has a wrong type, shape or range; the message names argument and remedy."""

    exit_code = 2


class HostMemoryError(HyrtError):
    """Data beyond the host memory limit could not be written to a file: the disk is full or read-only."""


class CheckpointError(HyrtError):
    """No checkpoint of a run can be read, or it belongs to another run."""

    exit_code = 2


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written: the disk is full or read-only. Earlier checkpoints are unchanged."""

    exit_code = 1


class DeviceUnavailableError(HyrtError):
    """A requested device is not available; the message has the remedy."""

    exit_code = 2


class UnsupportedModelError(HyrtError):
    """A device cannot run a layer of the model; the message names both."""

    exit_code = 2


class PluginConflictError(HyrtError):
    """Two distributions declare the same name in one entry-point group, for example the same device kind."""

    exit_code = 2


class DeviceOutOfMemoryError(HyrtError):
    """A device could not store a mini-batch. With fewer targets it may fit.

    Parameters
    ----------
    message
        Requested and available memory.
    remedy
        Remedy if fewer targets do not help; empty if smaller mini-batches or more memory help.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class DeviceFaultError(HyrtError):
    """A device failed permanently; every later call on it raises this error again."""


class StageError(HyrtError):
    """A pipeline stage failed; the message names stage, device and step, and the cause is chained."""


class RankFailureError(StageError):
    """Another rank of a distributed run has failed or cannot be reached; the message names the rank."""


class StallError(HyrtError):
    """The watchdog ended a run without progress."""


class DivergenceError(HyrtError):
    """A loss or a gradient is not finite; the step was not applied."""


_SYSTEM_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "use one that you may access, or change its permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free space, or choose another location"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files (ulimit -n), or close some"),
    errno.EROFS: "choose a writable location",
    errno.ENOENT: "use a path that exists",
    errno.EAGAIN: "allow more processes (ulimit -u), or end some",
    errno.ENOMEM: "free memory, or allow more of it (ulimit -v)",
    errno.ELOOP: "repair its symbolic links, which form a loop",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOLCK: "use a folder on a file system that supports locks",
}


def system_error_text(error: OSError) -> str:
    """Return the system's error message with a remedy: `No space left on device: free space, or give ...`."""
    message = error.strerror or str(error) or type(error).__name__
    remedy = _SYSTEM_REMEDIES.get(error.errno or 0)
    return f"{message}: {remedy}" if remedy else message


def join_names(names: Iterable[str], word: str = "and") -> str:
    """Join names for a sentence: `a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with the name of the class unless it is an error of hyrt."""
    if isinstance(error, HyrtError):
        return str(error)
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def convert_number_errors() -> Iterator[None]:
    """Re-raise ValueError and ArithmeticError as ConfigError in a block that computes with numbers from the
    user.
    """
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except ArithmeticError as error:
        raise ConfigError(
            f"a size or a rate is too large or too small to compute with ({error}): use a more common value"
        ) from error


def escape_undecodable(name: str) -> str:
    r"""Return a file name with non-UTF-8 bytes escaped as in a shell's `$'...'`: `b\xffd`.

    Such bytes are lone surrogates in `name`, which cannot be printed.
    """
    return re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", name)


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in escape_undecodable(text)
    )


def one_line(text: str) -> str:
    """Return foreign text, such as an exception of a driver, as one printable line."""
    return " ".join(
        "".join(letter if letter.isprintable() else " " for letter in escape_undecodable(text)).split()
    )
