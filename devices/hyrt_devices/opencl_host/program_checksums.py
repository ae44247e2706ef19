"""Checksums of programs in PoCL's cache: damaged programs are removed, because PoCL crashes on them."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path

from hyrt.machine.atomic_write import write_atomically

_FILE = "hyrt-checksums.json"
_BITCODE = b"BC\xc0\xde"
_ELF = b"\x7fELF"


def remove_damaged(folder: Path) -> int:
    """Remove programs with damaged files from a cache of PoCL, so that PoCL compiles these programs again.

    A file is damaged if it differs from the checksum that `save_checksums` saved. PoCL renames only complete
    files, so a file without a checksum is damaged if it is shorter than its headers say.

    Parameters
    ----------
    folder
        The cache; need not exist.

    Returns
    -------
    The number of programs that were removed.
    """
    checksums = _read_checksums(folder)
    damaged = set()
    for file in _files(folder):
        try:
            content = file.read_bytes()
        except OSError:  # Another process has removed it.
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
    """Return the folder of the program that a file belongs to: `AB/CDEF...`."""
    return folder.joinpath(*file.relative_to(folder).parts[:2])


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_complete(content: bytes) -> bool:
    """Return whether a file of bitcode or machine code is as long as its headers say."""
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
