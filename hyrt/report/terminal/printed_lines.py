"""Lines of text on any standard output: a terminal of some width, a pipe, an encoding of few characters."""

from __future__ import annotations

import codecs
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hyrt.errors import readable

_PLAIN = str.maketrans({"◀": "<", "·": "-", "━": "=", "╌": ".", "—": "-", "±": "+-", "…": "...", "→": "->"})


def print_wrapped(lines: Sequence[str], *, also_in_pipes: bool = False) -> None:
    """Print lines, broken at blanks to the width of a terminal.

    Into a file or a pipe they go whole, unless it is people who read them there: then they are as wide as
    COLUMNS says, or 80 columns.
    """
    is_wrapped = also_in_pipes or sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_wrapped else None
    for line in wrapped(lines, width):
        print(encodable(line, sys.stdout.encoding), flush=True)


def wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    """Break lines at blanks; what goes on is indented.

    Parameters
    ----------
    lines
        Lines of text without line breaks.
    width
        The columns of the terminal; None where it is none, and lines stay whole.
    """
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


def encodable(text: str, encoding: str | None) -> str:
    """The text with plain characters for those that an output's encoding lacks.

    Parameters
    ----------
    text
        Perhaps with characters that no output can show, as undecodable bytes of a file's name are: these
        are shown as `readable` says.
    encoding
        The encoding of the output; None where it does not say, which is taken for UTF-8.
    """
    encoding, text = encoding or "utf-8", readable(text)
    if encoding.lower().startswith("utf"):
        return text.encode("utf-8", "replace").decode()
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def replace_letters() -> None:
    """Let what is printed have any letters, whatever the encoding of the output: see `encodable`."""
    codecs.register_error("hyrt.plain", _plain_letters)
    # What stands for a standard output in tests and notebooks has no such method.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="hyrt.plain")


def _plain_letters(error: UnicodeError) -> tuple[str, int]:
    """What is printed in place of what an encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return encodable(error.object[error.start : error.end], "ascii"), error.end


def shell_word(path: str | Path) -> str:
    r"""A path as it can be pasted into a shell.

    Parameters
    ----------
    path
        Perhaps with bytes that are no UTF-8, as lone surrogates, which most outputs cannot show.

    Returns
    -------
    The path itself, or in quotes where it has blanks, or as `$'b\xffd'` where it has what cannot be printed.
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
