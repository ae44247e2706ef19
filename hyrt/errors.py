"""The errors hyrt raises for its users: each says what was wrong, where, and what to do.

The command line prints them as one line and exits with `exit_code`.
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
    """A signal asks the process to end: what it interrupts has not failed."""

    @classmethod
    def raised(cls, number: int, frame: FrameType | None) -> NoReturn:
        """A signal handler: the process ends with 128 + the signal's number."""
        raise cls(128 + number)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has come. Where the command line runs, any other KeyboardInterrupt was raised without one."""

    @classmethod
    def raised(cls, number: int, frame: FrameType | None) -> NoReturn:
        """A signal handler."""
        raise cls


class StepStopped(BaseException):
    """A run is asked to stop, and what is done of the step that is under way is kept: nothing has failed."""


class HyrtError(Exception):
    """Root of every error a user of hyrt may want to catch."""

    exit_code = 1
    has_lines = False
    """Whether the message is a report whose lines are printed one below the other."""
    others_wait = False
    """Whether other processes, if a launcher has started any, wait for this one to join them."""


class DataError(HyrtError):
    """A dataset is not what its schema says: the message names file, key and first bad position."""

    exit_code = 2


class DataWarning(UserWarning):
    """A dataset holds something that is not read, or nothing that can be learnt."""


class SettingWarning(UserWarning):
    """A setting is given that does not count."""


class MachineWarning(UserWarning):
    """Something of the machine makes hyrt slower than it has to be."""


class RunWarning(UserWarning):
    """What a run tells of and goes on after, where nobody hears its events."""


_PACKAGES = {"hyrt", "hyrt_devices", "hyrt_perfmodel", "hyrt_hls"}
_LIBRARIES = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def _is_hyrts(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES


def is_user_frame(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code, which is neither hyrt's nor an installed library's."""
    return not _is_hyrts(frame) and not frame.f_code.co_filename.startswith(("<frozen", *_LIBRARIES))


def user_warner(category: type[Warning]) -> Callable[[str], None]:
    """Return a function that warns at the line of the user's code that is calling hyrt now.

    Any thread may call the function. If only libraries call hyrt, warnings are at the line of the innermost.
    """
    frame: FrameType | None = sys._getframe(1)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    callers = [frame for frame in frames if not _is_hyrts(frame)] or frames
    caller = next((frame for frame in callers if is_user_frame(frame)), callers[0])
    place, names = (caller.f_code.co_filename, caller.f_lineno), caller.f_globals

    def warn(text: str) -> None:
        registry = names.setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, category, *place, names.get("__name__"), registry)

    return warn


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that is calling hyrt."""
    user_warner(category)(text)


class DataNotWritten(DataError):
    """The machine could not write a dataset: a full or read-only disk."""

    exit_code = 1


class ConfigError(HyrtError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 2


class ArgumentError(HyrtError, ValueError):
    """An argument of a call is of a wrong type, shape or range: the message names it and what to give."""

    exit_code = 2


class HostMemoryExhausted(HyrtError):
    """What was to go to a file, because host memory is limited, could not: a full or read-only disk."""


class CheckpointError(HyrtError):
    """No checkpoint of a run can be read, or it belongs to another run."""

    exit_code = 2


class CheckpointNotWritten(CheckpointError):
    """The machine could not write a checkpoint: a full or read-only disk. Earlier ones are untouched."""

    exit_code = 1


class DeviceUnavailable(HyrtError):
    """An asked-for device is not there; the message carries the remedy."""

    exit_code = 2


class UnsupportedModel(HyrtError):
    """A device cannot run a layer of the model; the message names both."""

    exit_code = 2


class PluginConflict(HyrtError):
    """Two distributions declare the same name in one entry-point group, like the same device kind."""

    exit_code = 2


class DeviceOutOfMemory(HyrtError):
    """A device could not hold a mini-batch. Recoverable: with fewer targets it may fit.

    Parameters
    ----------
    message
        What was wanted, and what there is.
    remedy
        What to do where fewer targets do not help; empty where it is smaller mini-batches or more memory.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class DeviceFault(HyrtError):
    """A device failed and cannot go on. Terminal: every later call on it raises this again."""


class StageFailure(HyrtError):
    """A pipeline stage failed; the message names stage, device and step, the cause is chained."""


class RankLost(StageFailure):
    """Another process of a distributed run has failed, or cannot be reached; the message names its rank."""


class Stalled(HyrtError):
    """The no-progress guard ended a run in which nothing moved."""


class Diverged(HyrtError):
    """A loss or a gradient is not finite; the step was not applied."""


_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give one that you may use, or change its permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free space, or give another place"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files (ulimit -n), or close some"),
    errno.EROFS: "give a place that can be written",
    errno.ENOENT: "give the name of one that is there",
    errno.EAGAIN: "allow more processes (ulimit -u), or end some",
    errno.ENOMEM: "free memory, or allow more of it (ulimit -v)",
    errno.ELOOP: "its symbolic links go round in a circle: mend them",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOLCK: "give a folder on a file system that has locks",
}


def told_of_system(error: OSError) -> str:
    """What the system says, and what to do about it: `No space left on device: free space, or give ...`."""
    said = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{said}: {remedy}" if remedy else said


def listed(names: Iterable[str], word: str = "and") -> str:
    """Names for a sentence: `a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def describe(error: BaseException) -> str:
    """An error in one line: hyrt's own speak for themselves, others are named."""
    text = str(error)
    if isinstance(error, HyrtError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def numbers_named() -> Iterator[None]:
    """Turn what is wrong with numbers of the user's into a ConfigError that says so."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except ArithmeticError as error:
        raise ConfigError(f"a size or a rate is too large or too small to compute with: {error}") from error


def readable(name: str) -> str:
    r"""A name of a file that is not UTF-8, by its bytes as a shell's `$'...'` takes them: `b\xffd`.

    Parameters
    ----------
    name
        With lone surrogates for such bytes, which no output can show.
    """
    return re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", name)


def one_line(text: str) -> str:
    """Text of others (drivers, exceptions) as one printable line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in readable(text)).split())
