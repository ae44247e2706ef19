"""Output of text lines to a terminal, a pipe or a stream with a limited encoding."""

from __future__ import annotations

import codecs
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hyrt.errors import escape_undecodable

_ASCII_REPLACEMENTS = str.maketrans(
    {"◀": "<", "·": "-", "━": "=", "╌": ".", "—": "-", "±": "+-", "…": "...", "→": "->"}
)


def print_wrapped(lines: Sequence[str], *, also_in_pipes: bool = False) -> None:
    """Print lines, word-wrapped to the terminal width.

    Files and pipes get unwrapped lines unless `also_in_pipes` is set, which uses the width COLUMNS, or 80.
    """
    is_wrapped = also_in_pipes or sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_wrapped else None
    for line in wrap_lines(lines, width):
        print(to_encodable(line, sys.stdout.encoding), flush=True)


def wrap_lines(lines: Sequence[str], width: int | None) -> list[str]:
    """Wrap lines at blanks, with indented continuation lines; if `width` is None, do not wrap."""
    if width is None:
        return list(lines)
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, max(width, 20), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def to_encodable(text: str, encoding: str | None) -> str:
    """Replace characters that an output encoding does not support; None means UTF-8.

    Unprintable characters, such as undecodable bytes of a file name, are replaced as in `escape_undecodable`.
    """
    encoding, text = encoding or "utf-8", escape_undecodable(text)
    if encoding.lower().startswith("utf"):
        return text.encode("utf-8", "replace").decode()
    return text.translate(_ASCII_REPLACEMENTS).encode(encoding, "replace").decode(encoding)


def install_encoding_fallback() -> None:
    """Replace unsupported characters in all printed text as `to_encodable` does."""
    codecs.register_error("hyrt.plain", _replace_unencodable)
    # Replacements of standard output in tests and notebooks may lack this method.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="hyrt.plain")


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Handle an encoding error: return the replacement, and the position at which encoding continues."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_encodable(error.object[error.start : error.end], "ascii"), error.end


def quote_path(path: str | Path) -> str:
    r"""Quote a path so that it can be pasted into a shell.

    Parameters
    ----------
    path
        Path, in which lone surrogates stand for bytes that are not UTF-8. Most outputs cannot show these.

    Returns
    -------
    The path, in quotes if it has blanks, or as `$'b\xffd'` if it has unprintable characters.
    """
    text = os.fspath(path)
    if text.isprintable():
        return shlex.quote(text)
    shown = ""
    for letter in text:
        if letter.isprintable():
            shown += f"\\{letter}" if letter in "\\'" else letter
        else:
            shown += "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
    return f"$'{shown}'"
