"""Atomic file writes, checks of output files and paths, and the exceptions that damaged archives cause."""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hyrt.errors import ConfigError, DataWriteError

ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def is_path_too_long(path: Path) -> bool:
    """Return whether a path is too long for the system, which makes pathlib raise an error."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    except ValueError:
        pass
    return False


def write_atomically(
    path: Path, data: bytes, on_operation: Callable[[str], None] = lambda doing: None
) -> None:
    """Write `data` to `path` through `atomic_file`; `on_operation` is also called with `write`."""
    with atomic_file(path, on_operation) as file:
        on_operation("write")
        file.write(data)


@contextmanager
def atomic_file(path: Path, on_operation: Callable[[str], None] = lambda doing: None) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends: write, fsync, rename, fsync the folder.

    The temporary file is `.<name>.<pid>.partial` in the same folder. It is removed on any failure except the
    death of the process. `on_operation` is called before each operation (`open`, `fsync`, `replace`, `sync`),
    and may raise an OSError in its place. After an OSError, `path` is unchanged, unless only the final fsync
    of the folder failed: then the new file is in place but may not survive a power failure.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        on_operation("open")
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            on_operation("fsync")
            os.fsync(file.fileno())
        on_operation("replace")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    on_operation("sync")
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that its file names survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def resolve_output_file(
    output: Path, *, replace: bool, suffix: str = "", alternative_suffix: str = "", option: str = "--output"
) -> Path:
    """Return the regular file behind an output path, with symbolic links resolved.

    Raises ConfigError, which names `option`, if the path is not a regular file, its folder is missing or not
    writable, it exists and `replace` is not set, or its suffix is neither `suffix` nor `alternative_suffix`.
    """
    if str(output) == "-":
        raise ConfigError(
            f"{option} is -, but hyrt does not write to standard output: specify the name of a file"
        )
    if suffix and output.suffix not in ("", suffix, alternative_suffix):
        formats = f"{suffix} or {alternative_suffix}" if alternative_suffix else suffix
        raise ConfigError(f"{output} does not end in {formats}: choose a name that does")
    file = Path(os.path.realpath(output))
    # An atomic write would replace a device or FIFO. A pipe behind /dev/stdout has no other path, so its
    # realpath does not exist.
    exists = os.path.lexists(file) or output.exists()
    if exists and not file.is_file():
        kind = "folder" if file.is_dir() else "special file"
        raise ConfigError(f"{output} is a {kind}: specify a regular file as {option}")
    if file.exists() and not replace:
        raise ConfigError(f"{output} already exists: choose another {option}, or add --force")
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent} does not exist: create this folder, or choose another {option}")
    # Fail early instead of after hours of computation.
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {file.parent} is not writable: choose another {option}")
    return file


@contextlib.contextmanager
def atomic_output(destination: Path, kind: str) -> Iterator[tuple[Path, Path]]:
    """Create a file or folder atomically: yield a path to write to, and an empty scratch folder.

    Both are in the folder of the destination, which is an absolute path. If the block succeeds, its output
    replaces the destination, otherwise the destination is unchanged. `kind` names the output in messages,
    such as "dataset". Raises DataWriteError if the disk is full or cannot be written.
    """
    work = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        work.mkdir()
        try:
            scratch = work / "scratch"
            scratch.mkdir()
            yield work / "result", scratch
            _publish(work, destination, kind)
        finally:
            shutil.rmtree(work)
    except OSError as error:
        remedy = "free some space, or choose a destination on another disk"
        if isinstance(error, PermissionError):
            remedy = "choose a destination in a folder that you may write to"
        raise DataWriteError(
            f"{destination} cannot be written ({error.strerror or error}): {remedy}"
        ) from error


def _publish(work: Path, destination: Path, kind: str) -> None:
    """Move the output to the destination; if that fails, restore the previous state."""
    # The scratch folder is always deleted, so move the old destination there only after the new one is in
    # place.
    replaced = destination.with_name(f".{destination.name}.{os.getpid()}.old")
    try:
        if destination.exists():
            destination.rename(replaced)
        (work / "result").rename(destination)
    finally:
        if replaced.exists():
            if destination.exists():
                replaced.rename(work / "replaced")
            else:
                _restore(replaced, destination, kind)


def _restore(replaced: Path, destination: Path, kind: str) -> None:
    try:
        replaced.rename(destination)
    except OSError as error:
        raise DataWriteError(
            f"{destination} cannot be written ({error.strerror or error}); the old {kind} is now "
            f"{replaced}: rename it back"
        ) from error
