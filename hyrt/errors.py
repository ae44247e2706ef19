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
    """Exit of a process that was ended by a signal; the interrupted work has not failed."""

    @classmethod
    def handle_signal(cls, number: int, frame: FrameType | None) -> NoReturn:
        """Exit with 128 + the number of the signal (a signal handler)."""
        raise cls(128 + number)


class Interrupted(KeyboardInterrupt):
    """Exception for Ctrl-C. Any other KeyboardInterrupt in the command line was raised without Ctrl-C."""

    @classmethod
    def handle_signal(cls, number: int, frame: FrameType | None) -> NoReturn:
        """Raise this exception (a signal handler)."""
        raise cls


class StepInterrupted(BaseException):
    """Exception for a run that stops within a step whose completed part is saved; this is not a failure."""


class HyrtError(Exception):
    """Base class of all errors that users may want to catch."""

    exit_code = 1
    is_multiline = False
    """Whether the message is a report of several lines."""
    peers_wait = False
    """Whether a launcher has started other ranks, which wait for this rank to join."""

    def __str__(self) -> str:
        """Return the message in one line, unless it is a report. File names may contain line breaks."""
        text = super().__str__()
        return "\n".join(printable(line) for line in (text.split("\n") if self.is_multiline else [text]))


class DataError(HyrtError):
    """Error in a dataset that violates its schema; the message has the file, key and first bad position."""

    exit_code = 2


class DataWarning(UserWarning):
    """Warning about data that is ignored, or from which nothing can be learned."""


class SettingWarning(UserWarning):
    """Warning about a setting that has no effect, or is given under its former name."""


class MachineWarning(UserWarning):
    """Warning about the state of the machine, which makes hyrt slower than necessary."""


class RunWarning(UserWarning):
    """Warning of a run that continues, for runs without an event listener."""


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
    """Return a function whose warnings refer to the line of user code that is calling hyrt now.

    Any thread may call the function. Without user code, warnings refer to the innermost line of a library.
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
    """Error if a dataset cannot be written, because the disk is full or read-only."""

    exit_code = 1


class ConfigError(HyrtError):
    """Error for a setting that is unknown, of the wrong type or out of range."""

    exit_code = 2


class ArgumentError(HyrtError, ValueError):
    """Error for an argument of a wrong type, shape or range. The message has the argument and the remedy."""

    exit_code = 2


class HostMemoryError(HyrtError):
    """Error if data beyond the host memory limit cannot be written to a file: the disk is full or
    read-only.
    """


class CheckpointError(HyrtError):
    """Error if no checkpoint of a run can be read, or if it belongs to another run."""

    exit_code = 2


class CheckpointWriteError(CheckpointError):
    """Error if a checkpoint cannot be written: disk full or read-only. Earlier checkpoints are unchanged."""

    exit_code = 1


class DeviceUnavailableError(HyrtError):
    """Error if a requested device is not available. The message has the remedy."""

    exit_code = 2


class UnsupportedModelError(HyrtError):
    """Error if a device cannot run a layer of the model. The message names both."""

    exit_code = 2


class PluginConflictError(HyrtError):
    """Error if two distributions declare one name in an entry-point group, such as the same device kind."""

    exit_code = 2


class DeviceOutOfMemoryError(HyrtError):
    """Error if a mini-batch does not fit on a device. With fewer targets it may fit.

    Parameters
    ----------
    message
        Message with the requested and available memory.
    remedy
        Remedy if fewer targets do not help; empty if smaller mini-batches or more memory help.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class DeviceFaultError(HyrtError):
    """Error if a device has failed permanently. Every later call of the device raises it again."""


class StageError(HyrtError):
    """Error of a pipeline stage. The message names stage, device and step, and the cause is chained."""


class RankFailureError(StageError):
    """Error if another rank of a distributed run fails or cannot be reached; the message names the rank."""


class StallError(HyrtError):
    """Error of a run without progress, which the watchdog has ended."""


class DivergenceError(HyrtError):
    """Error if a loss or a gradient is not finite. The optimizer step was not applied."""


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
    """Return an error as one line, with the name of its class unless it is an error of hyrt."""
    if isinstance(error, HyrtError):
        return str(error)
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def convert_number_errors() -> Iterator[None]:
    """Convert ValueError and ArithmeticError to ConfigError in a block that computes with numbers of the
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
    r"""Return a file name with bytes that are not UTF-8 escaped as in `$'...'` of a shell: `b\xffd`.

    In `name`, these bytes are lone surrogates, which cannot be printed.
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
    """Return foreign text, such as the message of a driver's exception, as one printable line."""
    return " ".join(
        "".join(letter if letter.isprintable() else " " for letter in escape_undecodable(text)).split()
    )
