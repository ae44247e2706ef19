"""Programs that PoCL has compiled and kept: damaged ones are removed, since reading one ends the process."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path

from hyrt.machine.atomic_write import write_atomically

_SUMS = "hyrt-checksums.json"
_BITCODE = b"BC\xc0\xde"
_ELF = b"\x7fELF"


def remove_damaged(folder: Path) -> int:
    """Remove the programs with a damaged file from a cache of PoCL, which compiles them again.

    Files are damaged if they differ from what `note_programs` noted. PoCL renames files once they are whole;
    so those that were not noted are damaged if they end too early.

    Parameters
    ----------
    folder
        The cache; need not exist.

    Returns
    -------
    How many programs were removed.
    """
    noted = _noted(folder)
    damaged = set()
    for file in _files(folder):
        try:
            content = file.read_bytes()
        except OSError:  # Another process has removed it.
            continue
        wanted = noted.get(str(file.relative_to(folder)))
        if _sum(content) != wanted and (wanted is not None or not _is_whole(content)):
            damaged.add(_program(folder, file))
    for program in damaged:
        shutil.rmtree(program, ignore_errors=True)
    return len(damaged)


def note_programs(folder: Path) -> None:
    """Note checksums of all programs in a cache; nothing happens if it cannot be written."""
    try:
        sums = {str(file.relative_to(folder)): _sum(file.read_bytes()) for file in _files(folder)}
        if sums and sums != _noted(folder):
            write_atomically(folder / _SUMS, json.dumps(sums).encode())
    except OSError:
        pass


def _noted(folder: Path) -> dict[str, str]:
    try:
        noted = json.loads((folder / _SUMS).read_bytes())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("??/**/*") if file.suffix in (".bc", ".so") and file.is_file())


def _program(folder: Path, file: Path) -> Path:
    """The folder of the program that a file belongs to: `AB/CDEF...`."""
    return folder.joinpath(*file.relative_to(folder).parts[:2])


def _sum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_whole(content: bytes) -> bool:
    """Whether a file of bitcode or machine code has all that its headers name."""
    try:
        if content[:4] == _ELF:
            start, size, count = struct.unpack_from("<Q10xHH", content, 40)
            return bool(start + size * count <= len(content))
        at = 4 if content[:4] == _BITCODE else len(content) + 1
        while at < len(content):
            # Each block begins with a word, of which two bits say so, and its length in words.
            word, length = struct.unpack_from("<II", content, at)
            at = at + 8 + 4 * length if word & 3 == 1 else len(content) + 1
        return at == len(content)
    except struct.error:
        return False
