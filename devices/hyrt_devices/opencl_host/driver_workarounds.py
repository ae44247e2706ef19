"""Workarounds for OpenCL drivers that report successful builds, replace signal handlers, or have damaged or
unusable program caches.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import shutil
import signal
import struct
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache_dir

from hyrt.errors import MachineWarning, warn_user
from hyrt.formatting import format_bytes
from hyrt.runtime.files import write_atomically
from hyrt.runtime.shutdown import STOP_SIGNALS

# Warning filters belong to the process: without a lock, a thread could restore the filters of another thread.
_LOCK = threading.Lock()


@contextmanager
def reports_ignored() -> Iterator[None]:
    """Suppress pyopencl's warnings about reports of successful builds, in one thread at a time.

    pyopencl warns about any compiler report, for example that vectors are wider than the processor's.
    """
    import pyopencl as cl

    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield


# Upper bound on the size of `struct sigaction` on any system.
_ACTION_BYTES = 512


@contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers at the end of the block, and block signals in threads that it starts.

    PoCL compiles with LLVM, which replaces the handlers: on a signal, LLVM first removes the files that it is
    writing, so the current build fails. PoCL's threads also start a linker. If Ctrl-C in a terminal
    terminates the linker, PoCL aborts the process. Threads and processes inherit the blocked signals of the
    thread that starts them. Handlers that are set in Python during the block are not changed.
    """
    before = {number: (signal.getsignal(number), _action(number)) for number in STOP_SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        for number, (handler, action) in before.items():
            if _function(_action(number)) != _function(action) and signal.getsignal(number) == handler:
                ctypes.CDLL(None).sigaction(number, action, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _action(number: int) -> bytes:
    """Return the `struct sigaction` of a signal."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw


def _function(action: bytes) -> bytes:
    """Return the first field of `struct sigaction`, the handler's address. The last field may be unset."""
    return action[: ctypes.sizeof(ctypes.c_void_p)]


_FILE = "hyrt-checksums.json"
_BITCODE = b"BC\xc0\xde"
_ELF = b"\x7fELF"


def remove_damaged(folder: Path) -> int:
    """Remove programs with damaged files from a PoCL cache, and return the number of removed programs.

    PoCL will recompile these programs. A file is damaged if it does not match the checksum that
    `save_checksums` saved. PoCL renames only complete files, so a file without a checksum is damaged if it is
    shorter than its headers state. `folder` need not exist.
    """
    checksums = _read_checksums(folder)
    damaged = set()
    for file in _files(folder):
        try:
            content = file.read_bytes()
        except OSError:  # Another process has already removed the program.
            continue
        expected = checksums.get(str(file.relative_to(folder)))
        if _checksum(content) != expected and (expected is not None or not _is_complete(content)):
            damaged.add(_program_folder(folder, file))
    for program in damaged:
        shutil.rmtree(program, ignore_errors=True)
    return len(damaged)


def save_checksums(folder: Path) -> None:
    """Save the checksums of all programs in a cache, if the cache can be written."""
    try:
        checksums = {str(file.relative_to(folder)): _checksum(file.read_bytes()) for file in _files(folder)}
        if checksums and checksums != _read_checksums(folder):
            write_atomically(folder / _FILE, json.dumps(checksums).encode())
    except OSError:
        pass


def _read_checksums(folder: Path) -> dict[str, str]:
    try:
        checksums = json.loads((folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return checksums if isinstance(checksums, dict) else {}


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("??/**/*") if file.suffix in (".bc", ".so") and file.is_file())


def _program_folder(folder: Path, file: Path) -> Path:
    """Return the folder of the program to which a file belongs, `AB/CDEF...`."""
    return folder.joinpath(*file.relative_to(folder).parts[:2])


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_complete(content: bytes) -> bool:
    """Return whether a file of bitcode or machine code is as long as its headers state."""
    try:
        if content[:4] == _ELF:
            start, size, count = struct.unpack_from("<Q10xHH", content, 40)
            return bool(start + size * count <= len(content))
        position = 4 if content[:4] == _BITCODE else len(content) + 1
        while position < len(content):
            # A block starts with a word whose two lowest bits are 1, and the number of words that follow.
            word, length = struct.unpack_from("<II", content, position)
            position = position + 8 + 4 * length if word & 3 == 1 else len(content) + 1
        return position == len(content)
    except struct.error:
        return False


# Minimum free space, for the kernels of a few runs and temporary files of the compiler.
_MIN_BYTES = 16 << 20


def ensure_driver_cache() -> None:
    """Set a temporary cache folder for PoCL if its cache is not writable or the disk is full.

    Every process then recompiles the kernels. If pyopencl's cache is unusable, it is disabled, because
    otherwise pyopencl refuses to launch kernels. Call this function before importing pyopencl.
    """
    if _unusable(user_cache_dir()):
        os.environ.setdefault("PYOPENCL_NO_CACHE", "true")
    cache_folder = _folder()
    problem = _unusable(cache_folder)
    if not problem:
        if remove_damaged(cache_folder):
            warn_user(
                f"compiled OpenCL kernels in {cache_folder} are damaged, so they are compiled again",
                MachineWarning,
            )
        atexit.unregister(save_checksums)
        atexit.register(save_checksums, cache_folder)
    if not problem or "POCL_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="hyrt-opencl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["POCL_CACHE_DIR"] = folder
    warn_user(
        f"PoCL's cache of compiled OpenCL kernels, {cache_folder}, {problem}, so every process compiles "
        "them again: repair the folder, or set POCL_CACHE_DIR to another one",
        MachineWarning,
    )


def driver_cache_problem() -> str:
    """Return the reason why PoCL's cache is unusable, and the remedy; "" if it is usable."""
    cache_folder = _folder()
    problem = _unusable(cache_folder)
    return problem and (
        f"PoCL's cache of compiled kernels, {cache_folder}, {problem}: set POCL_CACHE_DIR to another folder"
    )


def _folder() -> Path:
    """Return PoCL's cache folder. As in PoCL, environment variables are not expanded."""
    named, cache = os.environ.get("POCL_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if named is not None:
        return Path(named)
    return Path(cache or os.path.join(os.environ.get("HOME", "/tmp"), ".cache"), "pocl", "kcache")


def _unusable(folder: Path) -> str:
    """Return the reason why a folder, which need not exist yet, is unusable, or ""."""
    # Path.exists would raise an error if a parent folder is not accessible.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable"
    free = shutil.disk_usage(folder).free
    return f"has only {format_bytes(free)} left" if free < _MIN_BYTES else ""
