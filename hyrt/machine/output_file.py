"""Where a command writes what it was asked for."""

from __future__ import annotations

import os
from pathlib import Path

from hyrt.errors import ConfigError


def output_file(
    output: Path, *, replace: bool, suffix: str = "", other: str = "", option: str = "--output"
) -> Path:
    """The regular file an output is, behind symbolic links; `option` names it in messages.

    Raises
    ------
    ConfigError
        If it is something else, in no folder or in one that cannot be written, may not be replaced, or its
        name says that it is of another format than `suffix` and `other`.
    """
    if str(output) == "-":
        raise ConfigError(f"{option} -: nothing is written to the standard output: give the name of a file")
    if suffix and output.suffix not in ("", suffix, other):
        formats = f"{suffix} or {other}" if other else suffix
        raise ConfigError(f"{output}: the file is written as {formats}: give a name that ends in {formats}")
    file = Path(os.path.realpath(output))
    # What is written takes the place of what is there: of a device or a FIFO it must not.
    # A pipe behind /dev/stdout is nowhere but behind that name.
    is_there = os.path.lexists(file) or output.exists()
    if is_there and not file.is_file():
        kind = "folder" if file.is_dir() else "special file"
        raise ConfigError(f"{output}: this is a {kind}: give the name of a regular file as {option}")
    if file.exists() and not replace:
        raise ConfigError(f"{output}: already exists: give another {option}, or --force")
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent}: no such folder: create it, or give another {option}")
    # Before hours of computing, not after them.
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{file.parent}: this folder cannot be written: give another {option}")
    return file
