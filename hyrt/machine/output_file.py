"""Checks of the output file of a command."""

from __future__ import annotations

import os
from pathlib import Path

from hyrt.errors import ConfigError


def output_file(
    output: Path, *, replace: bool, suffix: str = "", other: str = "", option: str = "--output"
) -> Path:
    """Return the regular file behind an output path, with symbolic links resolved.

    `option` names the command-line option in messages.

    Raises
    ------
    ConfigError
        If the path is not a regular file, its folder is missing or not writable, it exists and `replace` is
        not set, or its suffix is neither `suffix` nor `other`.
    """
    if str(output) == "-":
        raise ConfigError(f"{option} -: nothing is written to the standard output: give the name of a file")
    if suffix and output.suffix not in ("", suffix, other):
        formats = f"{suffix} or {other}" if other else suffix
        raise ConfigError(f"{output}: the file is written as {formats}: give a name that ends in {formats}")
    file = Path(os.path.realpath(output))
    # An atomic write would replace a device or FIFO. A pipe behind /dev/stdout has no other path, so its
    # realpath does not exist.
    exists = os.path.lexists(file) or output.exists()
    if exists and not file.is_file():
        kind = "folder" if file.is_dir() else "special file"
        raise ConfigError(f"{output}: this is a {kind}: give the name of a regular file as {option}")
    if file.exists() and not replace:
        raise ConfigError(f"{output}: already exists: give another {option}, or --force")
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent}: no such folder: create it, or give another {option}")
    # Check before hours of computing.
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{file.parent}: this folder cannot be written: give another {option}")
    return file
